// A handler of another runtime: a Lambda function of its own, with a role of its own, that a fleet
// invokes as the event source mapping would. It is written for the mapping, and runs unmodified.
//
// Orders with a negative amount are refused. The reply names the first of them, and the fleet then
// checkpoints just before it and delivers from it again.

export const handler = async (event) => {
  for (const { kinesis } of event.Records) {
    try {
      takeOrder(JSON.parse(Buffer.from(kinesis.data, "base64").toString()));
    } catch (error) {
      console.error(`order at ${kinesis.sequenceNumber}: ${error.name}`);
      return { batchItemFailures: [{ itemIdentifier: kinesis.sequenceNumber }] };
    }
  }
  return { batchItemFailures: [] };
};

function takeOrder(order) {
  if (order.amount < 0) throw new RangeError(`${order.amount} is no amount`);
  console.log(`order ${order.id} taken`);
}
