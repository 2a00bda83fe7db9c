"""
What happens after the first deployment, with records flowing all the time (docs/day-two.md).

New code and back again, a second fleet on the same stream, and a stack that is destroyed while its
tables stay and are taken over by the next one.
"""

import base64
import contextlib
import json
import time
from collections import Counter
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from shardfleet_local.aws.deploy import deploy
from shardfleet_local.own.reloading import Reloader, deployed_handlers
from shardfleet_local.rig.fleet import FleetPlan, running_fleet
from shardfleet_ops.cli import app as application
from tests.end_to_end.cloud import Fleet, wait_until
from tests.end_to_end.watching import Feed

pytestmark = pytest.mark.processes

SHARDS = 2
DEADLINE_S = 120
CONFIG = {
    "leases_per_worker": 2,
    "failover_ms": 3_000,
    "cycle_ms": 1_000,
    "handler_timeout_ms": 5_000,
    "max_turn_ms": 12_000,
}
HANDLER = """
import json, os

VERSION = {version}
_LEDGER = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def handler(event, context):
    line = {{
        "version": VERSION,
        "function": context.function_name,
        "records": [record["kinesis"]["data"] for record in event["Records"]],
    }}
    os.write(_LEDGER, json.dumps(line).encode() + b"\\n")
"""


class Account:
    """One account, and what is deployed to it."""

    def __init__(self, folder, aws, stack, template):
        self.folder, self.aws, self.template = folder, aws, template
        self.stack = stack
        self.fleet = Fleet(aws, dict(stack.outputs), folder)
        self.stream = stack.outputs["StreamArn"]

    def handler(self, version):
        return str(write_handler(self.folder, version))

    def calls(self, function=None):
        """Return the calls of the handler so far, oldest first."""
        lines = (self.folder / "ledger.jsonl").read_bytes().split(b"\n")[:-1]
        calls = [json.loads(line) for line in lines]
        return [call for call in calls if function in (None, call["function"])]

    def times_handled(self, feed, function):
        found = Counter(
            tuple(json.loads(base64.b64decode(data)))
            for call in self.calls(function)
            for data in call["records"]
        )
        return {record: found[record] for record in feed.expected}

    def all_once(self, feed, function):
        """Wait until every record was handled, and see that none was twice."""
        wait_until(
            lambda: all(self.times_handled(feed, function).values()),
            what="every record handled",
            within_s=DEADLINE_S,
            fleet=self.fleet,
        )
        assert set(self.times_handled(feed, function).values()) == {1}

    def deploy(self, name, **context):
        """Synthesize the stack under this name, and create or update it."""
        from aws_cdk import App  # noqa: PLC0415 - it starts Node

        from shardfleet_cdk.assets import asset_root  # noqa: PLC0415
        from shardfleet_cdk.stack import ShardFleetStack  # noqa: PLC0415
        from shardfleet_cdk.synthesis import NO_BUNDLING, project_context  # noqa: PLC0415

        out = self.folder / f"cdk-{name}-{time.monotonic_ns()}"
        given = {f"shardfleet:{key}": value for key, value in {**BASE, **context}.items()}
        app = App(
            outdir=str(out),
            context={**project_context(), **given, **NO_BUNDLING},
            analytics_reporting=False,
        )
        ShardFleetStack(app, name, project=asset_root())
        app.synth()
        return deploy(out, name, self.aws)

    def ask(self, monkeypatch, *arguments):
        for name, value in self.aws.environment().items():
            monkeypatch.setenv(name, value)
        assert application.run(list(arguments)) == 0


BASE = {
    "stream": {"shards": SHARDS},
    "function": "versioned:handler",
    "config": CONFIG,
    "monitoring": False,
}


def write_handler(folder, version):
    place = Path(folder) / f"handler-{version}"
    place.mkdir(exist_ok=True)
    (place / "versioned.py").write_text(HANDLER.format(version=version))
    return place


@pytest.fixture(scope="module")
def account(tmp_path_factory):
    folder = tmp_path_factory.mktemp("day-two")
    (folder / "ledger.jsonl").touch()
    given = {**BASE, "handler": str(write_handler(folder, 1))}
    plan = FleetPlan(
        context={f"shardfleet:{key}": value for key, value in given.items()},
        enforce_iam=True,
        environment={"LEDGER": str(folder / "ledger.jsonl")},
    )
    with running_fleet(folder / "finished.jsonl", plan) as running:
        yield Account(folder, running.aws, running.stack, running.template)


def by_version(account, version):
    wait_until(
        lambda: account.calls()[-1:] and account.calls()[-1]["version"] == version,
        what=f"version {version} at work",
        within_s=DEADLINE_S,
        fleet=account.fleet,
    )


def test_new_code_takes_over_between_two_turns_and_so_does_the_old_again(account):
    worker = account.fleet.outputs["WorkerFunction"]
    with Feed(account.fleet, name="redeployed") as feed:
        by_version(account, 1)
        executions = {each["executionArn"] for each in account.fleet.executions()}

        account.deploy("ShardFleetStack", handler=account.handler(2))
        by_version(account, 2)
        account.deploy("ShardFleetStack", handler=account.handler(1))
        by_version(account, 1)

    account.all_once(feed, worker)
    # The same executions went on: nobody had to start anything again.
    still = {each["executionArn"] for each in account.fleet.executions()}
    assert still == executions


def test_an_edited_file_is_at_work_in_the_fleet_that_runs_and_no_record_comes_twice(
    account, monkeypatch
):
    monkeypatch.setenv("LEDGER", str(account.folder / "tried.jsonl"))
    said = []
    handlers = deployed_handlers(account.template.parent)
    reloader = Reloader(account.aws, handlers, say=said.append)
    with Feed(account.fleet, name="edited") as feed:
        by_version(account, 1)
        (account.folder / "handler-1/versioned.py").write_text(HANDLER.format(version=11))
        reloader.look(account.stack)
        by_version(account, 11)

    account.all_once(feed, account.fleet.outputs["WorkerFunction"])
    assert said == ["reloaded versioned:handler: the next batch is handled by the new code"]


def test_a_mistake_is_refused_before_anything_is_deployed(account):
    worker = account.fleet.outputs["WorkerFunction"]
    with Feed(account.fleet, name="refused") as feed:
        with pytest.raises(Exception, match="handler"):
            account.deploy("ShardFleetStack", handler=str(account.folder / "nowhere"))
        time.sleep(3)

    account.all_once(feed, worker)


def test_two_fleets_in_one_account_read_the_same_stream_each_on_its_own(account, monkeypatch):
    first = account.fleet.outputs["WorkerFunction"]
    second = account.deploy("Second", handler=account.handler(7), stream=account.stream).outputs
    assert not set(second.values()) & set(account.fleet.outputs.values()) - {
        account.stream,
        account.fleet.outputs["StreamName"],
    }
    fleet = Fleet(account.aws, dict(second), account.folder)
    wait_until(
        lambda: (
            [lease.get("leaseOwner") for lease in fleet.leases().values()].count(None) == 0
            and len(fleet.leases()) == SHARDS
        ),
        what="the second fleet's leases",
        within_s=DEADLINE_S,
        fleet=fleet,
    )
    with Feed(account.fleet, name="shared") as feed:
        time.sleep(5)
        account.ask(monkeypatch, "pause", "--all", "--yes", "--stack", "Second")
        account.ask(monkeypatch, "resume", "--all", "--yes", "--stack", "Second")
        time.sleep(3)

    account.all_once(feed, first)
    account.all_once(feed, second["WorkerFunction"])
    # Each fleet's leases are its own: one cannot even see the other's.
    owners = {lease["leaseOwner"] for lease in fleet.leases().values()}
    assert not owners & {lease["leaseOwner"] for lease in account.fleet.leases().values()}
    # Not drained: its workers are ended, and nobody waits for their turns (finding A11).
    destroy(account, "Second")


def destroy(account, name):
    cloudformation = account.aws.client("cloudformation")
    cloudformation.delete_stack(StackName=name)

    def is_gone():
        with contextlib.suppress(ClientError):
            stack = cloudformation.describe_stacks(StackName=name)["Stacks"][0]
            return stack["StackStatus"] == "DELETE_COMPLETE"
        return True

    wait_until(is_gone, what=f"{name} deleted", within_s=60)


def test_a_destroyed_fleet_leaves_its_tables_and_the_next_one_goes_on_from_them(
    account, monkeypatch
):
    outputs = account.fleet.outputs
    with Feed(account.fleet, name="destroyed") as feed:
        time.sleep(3)
        account.ask(monkeypatch, "drain", "--yes")
        before = account.fleet.leases()
        assert all("leaseOwner" not in lease for lease in before.values())
        destroy(account, "ShardFleetStack")
        tables = account.aws.client("dynamodb").list_tables()["TableNames"]
        assert {outputs["LeaseTable"], outputs["StateTable"]} <= set(tables)
        streams = account.aws.client("kinesis").list_streams()["StreamNames"]
        assert outputs["StreamName"] in streams
        with pytest.raises(ClientError):
            account.aws.client("lambda").get_function(FunctionName=outputs["WorkerFunction"])
        assert account.fleet.leases() == before

        again = account.deploy(
            "Again",
            handler=account.handler(9),
            stream=account.stream,
            lease_table=outputs["LeaseTable"],
        ).outputs
        by_version(account, 9)

    wait_until(
        lambda: all(account.times_handled(feed, None).values()),
        what="every record handled",
        within_s=DEADLINE_S,
    )
    assert set(account.times_handled(feed, None).values()) == {1}
    # Both had a part in it: the new one went on exactly where the old one stopped.
    for worker in (outputs["WorkerFunction"], again["WorkerFunction"]):
        assert set(account.times_handled(feed, worker).values()) == {0, 1}
