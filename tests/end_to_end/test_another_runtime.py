"""
A fleet whose handler is a function of its own, deployed: the example, on Node.js if that is here.

The same test runs with a Python function, which any machine has.
"""

import io
import json
import re
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.end_to_end.cloud import deployed, wait_until

pytestmark = pytest.mark.processes

EXAMPLE = Path(__file__).resolve().parents[2] / "functions/examples/another_runtime"
ORDERS, POISONED = 40, 17
# What the example does, in Python.
IN_PYTHON = """
import base64, json

def handler(event, context):
    for record in event["Records"]:
        kinesis = record["kinesis"]
        order = json.loads(base64.b64decode(kinesis["data"]))
        if order["amount"] < 0:
            return {"batchItemFailures": [{"itemIdentifier": kinesis["sequenceNumber"]}]}
        print(f"order {order['id']} taken")
"""
KINDS = {
    "node": ("nodejs22.x", "index.handler", "index.mjs"),
    "python": ("python3.14", "orders.handler", "orders.py"),
}


def archive(kind):
    name = KINDS[kind][2]
    text = IN_PYTHON if kind == "python" else (EXAMPLE / name).read_text("utf-8")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as members:
        members.writestr(name, text)
    return packed.getvalue()


def create_function(fleet, kind, name="orders"):
    """Create the function with a role that may do nothing at all."""
    trusted = {"Effect": "Allow", "Action": "sts:AssumeRole"}
    trusted["Principal"] = {"Service": "lambda.amazonaws.com"}
    role = fleet.client("iam").create_role(
        RoleName=f"{name}-{kind}",
        AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [trusted]}),
    )
    runtime, handler, _ = KINDS[kind]
    fleet.client("lambda").create_function(
        FunctionName=name,
        Runtime=runtime,
        Handler=handler,
        Role=role["Role"]["Arn"],
        Code={"ZipFile": archive(kind)},
        Timeout=20,
    )


@pytest.fixture(scope="module", params=KINDS)
def shop(request, tmp_path_factory):
    """One shard of orders; the function is not there yet."""
    if request.param == "node" and not shutil.which("node"):
        pytest.skip("Node.js is not on this machine")
    with deployed(
        tmp_path_factory.mktemp("orders"),
        environment={},
        context={"shardfleet:handler_function": "orders"},
        config={"max_attempts": 2, "on_exhausted": "s3", "max_workers": 1},
    ) as fleet:
        yield fleet, request.param


def checkpoint_of(fleet):
    (lease,) = fleet.leases().values()
    return lease["checkpoint"]


def test_a_missing_function_is_named_and_once_there_it_handles_all_and_one_is_given_up(shop):
    fleet, kind = shop
    kinesis = fleet.client("kinesis")
    numbers = [
        kinesis.put_record(
            StreamName=fleet.outputs["StreamName"],
            PartitionKey=f"customer-{number % 5}",
            Data=json.dumps({"id": number, "amount": -1 if number == POISONED else 1}).encode(),
        )["SequenceNumber"]
        for number in range(ORDERS)
    ]

    def failure():
        found = [slot.get("failure") for slot in fleet.documents("slot").values()]
        return found and found[0]

    told = wait_until(failure, what="a failure on the slot", within_s=90, fleet=fleet)
    assert told["kind"] == "FUNCTION"
    assert "handler_function " in told["message"]
    assert "ResourceNotFoundException" in told["message"]

    create_function(fleet, kind)

    wait_until(
        lambda: checkpoint_of(fleet) == numbers[-1],
        what="the last order's checkpoint",
        within_s=120,
        fleet=fleet,
    )
    taken = [int(n) for n in re.findall(r"order (\d+) taken", "\n".join(fleet.logs()))]
    assert set(taken) == set(range(ORDERS)) - {POISONED}
    s3 = fleet.client("s3")
    (bucket,) = [each["Name"] for each in s3.list_buckets()["Buckets"] if "failed" in each["Name"]]
    (kept,) = s3.list_objects_v2(Bucket=bucket)["Contents"]
    document = json.loads(s3.get_object(Bucket=bucket, Key=kept["Key"])["Body"].read())
    assert document["KinesisBatchInfo"]["startSequenceNumber"] == numbers[POISONED]
    assert document["requestContext"]["approximateInvokeCount"] == 2
