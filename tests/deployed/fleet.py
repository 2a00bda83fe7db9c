"""
A fleet on the deployed assets: manager and worker in Lambda's own runtime client.

Tables, stream and environment are the template's; the AWS behind them is the embedded one. The
Scheduler and the state machine are played here: the manager is invoked once, and what it starts
is a worker's invocation.
"""

import json
import queue
import subprocess
import threading
import time
from pathlib import Path

from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.aws.settings import AwsBehaviour
from tests.deployed.pythons import say
from tests.deployed.runtime_api import RuntimeApi

RECORDS = 240
FILLING = 20_000  # Bytes of a record: only pages with much in them are read by a thread.
MANAGER = "handler.manager_handler"
WORKER = "shardfleet.runtime.entry_points.worker_handler"
TIMEOUT_S = {MANAGER: 30, WORKER: 40}
WAIT_S = 180  # Of a slow machine: nothing is measured.
MEMORY_MB = "1769"
TABLE = ("AttributeDefinitions", "KeySchema", "GlobalSecondaryIndexes", "BillingMode")
NO_OP = {"StartAt": "Slot", "States": {"Slot": {"Type": "Wait", "Seconds": 900, "End": True}}}


def run(template, roots):
    """
    Run the fleet until every record has been delivered.

    Args:
        template: the synthesized one.
        roots: the root folder of each function, by its handler's name.

    Returns:
        What was seen; raises AssertionError where a record is lost or made up.

    """
    with EmbeddedAws(behaviour=AwsBehaviour(kinesis_quotas=False)) as aws:
        names, stream = _resources(template, aws)
        configurations = {
            each["Properties"]["Handler"]: each["Properties"]
            for each in template["Resources"].values()
            if each["Type"] == "AWS::Lambda::Function"
        }
        functions = {
            handler: _Function(handler, roots[handler], configurations[handler], names, aws)
            for handler in (MANAGER, WORKER)
        }
        try:
            return _play(functions, roots[WORKER].folder, aws, names, stream)
        except AssertionError:
            for function in functions.values():
                function.tell()
            raise
        finally:
            for function in functions.values():
                function.close()


def _play(functions, worker_root, aws, names, stream):
    manager = threading.Thread(target=functions[MANAGER].invoke, args=({"trigger": "schedule"},))
    manager.start()
    slot = _slot(aws)
    worker = threading.Thread(target=functions[WORKER].invoke, args=({**slot, "crashes": 0},))
    worker.start()
    delivered = worker_root / "tmp/delivered.jsonl"
    put = _records(aws, stream, 0)
    _delivered(delivered, len(put), worker)
    put += _records(aws, stream, len(put))  # These are read by a thread.
    found = _delivered(delivered, len(put), worker)
    worker.join(WAIT_S)
    manager.join(WAIT_S)
    told = {handler: function.reply for handler, function in functions.items()}
    assert sorted(found) == sorted(put), f"{len(found)} of {len(put)} records came; {told}"
    assert told[MANAGER][0] == "response", told
    assert told[MANAGER][1]["turns"] >= 1, told
    assert told[WORKER] == ("response", {"version": 1, "outcome": "CONTINUE"}), told
    table = names["FleetLeases"]
    leases = aws.client("dynamodb").scan(TableName=table)["Items"]
    read = [lease for lease in leases if lease.get("checkpoint", {}).get("S", "").isdigit()]
    assert len(read) == len(leases) == 2, leases
    return (
        f"manager: {told[MANAGER][1]['turns']} turns; worker: {told[WORKER][1]['outcome']}, by "
        f"awslambdaric; {len(found)} of {len(put)} records delivered, 2 leases checkpointed"
    )


class _Function:
    """One execution environment: the runtime client in its root, and the API it asks."""

    def __init__(self, handler, root, configuration, names, aws):
        self.reply = None
        self._timeout_s = TIMEOUT_S[handler]
        self._api = RuntimeApi(f"arn:aws:lambda:{aws.region}:{aws.account_id}:function:f")
        self._api.__enter__()
        own = configuration.get("Environment", {}).get("Variables", {})
        environment = {name: _resolved(value, names) for name, value in own.items()}
        environment |= aws.environment()
        environment |= {
            "_HANDLER": handler,
            "AWS_LAMBDA_RUNTIME_API": self._api.address,
            "AWS_EXECUTION_ENV": f"AWS_Lambda_{configuration['Runtime']}",
            "AWS_LAMBDA_FUNCTION_NAME": "f",
            "AWS_LAMBDA_FUNCTION_VERSION": "1",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": MEMORY_MB,
            "AWS_LAMBDA_LOG_GROUP_NAME": "/aws/lambda/f",
            "AWS_LAMBDA_LOG_STREAM_NAME": "1",
            "LAMBDA_TASK_ROOT": "/var/task",
            "PYTHONPATH": "/var/task:/opt/python:/var/runtime",
        }
        self._log = (root.folder.parent / f"{root.folder.name}.log").open("wb")
        self._process = root.start(
            *("-m", "awslambdaric", handler),
            environment=environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def invoke(self, event):
        try:
            self.reply = self._api.invoke(event, timeout_s=self._timeout_s, wait_s=WAIT_S)
        except queue.Empty:
            self.reply = ("nothing", None)

    def log(self):
        """Return what the function has written."""
        return Path(self._log.name).read_bytes()

    def tell(self):
        """Print what it replied, and the end of its log."""
        say(f"{self.reply}\n{self.log().decode(errors='replace')[-1500:]}")

    def close(self):
        self._process.kill()
        self._process.wait()
        self._api.__exit__()
        self._log.close()


def _resources(template, aws):
    """Make tables, stream and a state machine; return every name and ARN, and the stream's."""
    names, stream = {}, ""
    account = f"{aws.region}:{aws.account_id}"
    for logical, resource in template["Resources"].items():
        kind, properties = resource["Type"], resource.get("Properties", {})
        if kind == "AWS::DynamoDB::Table":
            given = {name: properties[name] for name in TABLE if name in properties}
            aws.client("dynamodb").create_table(TableName=logical, **given)
            names["FleetLeases" if logical.startswith("FleetLeases") else logical] = logical
            names[logical] = logical
        elif kind == "AWS::Kinesis::Stream":
            stream = logical
            aws.client("kinesis").create_stream(StreamName=logical, ShardCount=2)
            aws.client("kinesis").get_waiter("stream_exists").wait(StreamName=logical)
            names[f"{logical}.Arn"] = f"arn:aws:kinesis:{account}:stream/{logical}"
        elif kind == "AWS::StepFunctions::StateMachine":
            role = f"arn:aws:iam::{aws.account_id}:role/none"
            made = aws.client("stepfunctions").create_state_machine(
                name="slots", definition=json.dumps(NO_OP), roleArn=role
            )
            names[logical] = names[f"{logical}.Arn"] = made["stateMachineArn"]
    return names, stream


def _resolved(value, names):
    match value:
        case {"Ref": name}:
            return names[name]
        case {"Fn::GetAtt": [name, attribute]}:
            return names[f"{name}.{attribute}"]
    return str(value)


def _records(aws, stream, first):
    numbers = range(first, first + RECORDS)
    put = [(f"key-{number % 37}", f"record {number}") for number in numbers]
    records = [{"PartitionKey": key, "Data": data.ljust(FILLING).encode()} for key, data in put]
    aws.client("kinesis").put_records(StreamName=stream, Records=records)
    return put


def _delivered(file, count, worker):
    """Wait for so many records, and return them."""
    limit = time.monotonic() + WAIT_S
    while True:
        lines = file.read_bytes().splitlines() if file.exists() else []
        if len(lines) >= count or not worker.is_alive() or time.monotonic() > limit:
            return [tuple(json.loads(line)) for line in lines]
        time.sleep(0.1)


def _slot(aws):
    """Wait for the execution that the manager starts, and return its input."""
    machines = aws.client("stepfunctions")
    (machine,) = machines.list_state_machines()["stateMachines"]
    limit = time.monotonic() + WAIT_S
    while time.monotonic() < limit:
        found = machines.list_executions(stateMachineArn=machine["stateMachineArn"])["executions"]
        if found:
            told = machines.describe_execution(executionArn=found[-1]["executionArn"])
            return json.loads(told["input"])
        time.sleep(0.2)
    raise AssertionError(f"the manager started no slot within {WAIT_S} s")
