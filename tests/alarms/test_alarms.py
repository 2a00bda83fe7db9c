"""
Each alarm driven to ALARM and back by its real condition, on the embedded AWS.

Takes minutes, because alarms look at several of their periods: `make alarms`. A minute of an alarm
lasts six seconds here; `SOONER` (watched.py) lists the limits that are lowered besides.
"""

import contextlib
import json
import os
import re
import threading
import time
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from shardfleet.engine.state.kinds import WORKER_KINDS
from shardfleet_local.dashboard.gathering import Gatherer
from shardfleet_local.dashboard.server import DashboardServer, ShownFleet
from shardfleet_ops.explain.fleet_view import FleetReading
from tests.alarms.watched import SCALE, eventually, watched
from tests.local.dashboard.browser import CHROMIUM, look

ASKED_FOR = os.environ.get("SHARDFLEET_TEST_ALARMS") == "1"
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not ASKED_FOR, reason="takes minutes: make alarms"),
]
SCHEDULE_FIELDS = ("Name", "GroupName", "ScheduleExpression", "FlexibleTimeWindow", "Target")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with watched(tmp_path_factory.mktemp("alarms")) as found:
        found.put(b"first")
        found.wait_for("OK", *found.names)
        yield found


@pytest.fixture(scope="module")
def quarantined(tmp_path_factory):
    """One slot per shard, two reserved; what fails goes to a queue."""
    with watched(
        tmp_path_factory.mktemp("quarantined"),
        shards=1,
        config={"on_exhausted": "sqs", "leases_per_worker": 1, "max_workers": 3},
        worker={"reserved_concurrency": 2},
        alarms={"quarantine_age": {"threshold": 5}},
    ) as found:
        found.put(b"first")
        found.wait_for("OK", *found.names)
        yield found


@contextlib.contextmanager
def fed(fleet, *, pause_s=0.5, records=1, keys=("a", "b", "c", "d", "e", "f")):
    """Put records all the time."""
    over = threading.Event()

    def feed():
        while not over.wait(pause_s):
            for _ in range(records):
                fleet.put(b"fed", keys=keys)

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def role_of(fleet, prefix):
    roles = fleet.fleet.stack.of_type("AWS::IAM::Role")
    (found,) = (physical for logical, physical in roles.items() if logical.startswith(prefix))
    return found


@contextlib.contextmanager
def without_right(fleet, prefix, policy):
    """Take a role's inline policy away, and give it back."""
    iam, role = fleet.client("iam"), role_of(fleet, prefix)
    document = iam.get_role_policy(RoleName=role, PolicyName=policy)["PolicyDocument"]
    iam.delete_role_policy(RoleName=role, PolicyName=policy)
    try:
        yield
    finally:
        iam.put_role_policy(RoleName=role, PolicyName=policy, PolicyDocument=json.dumps(document))


@contextlib.contextmanager
def schedule_changed(fleet, **changes):
    """Change the manager's schedule, and put it back."""
    scheduler = fleet.client("scheduler")
    (name,) = (each["Name"] for each in scheduler.list_schedules()["Schedules"])
    found = scheduler.get_schedule(Name=name)
    stored = {field: found[field] for field in SCHEDULE_FIELDS if field in found}
    changes = {key: change(stored.get(key)) for key, change in changes.items()}
    scheduler.update_schedule(**{**stored, **changes})
    try:
        yield
    finally:
        scheduler.update_schedule(**{**stored, "State": "ENABLED"})


def change_lease(fleet, key, **values):
    """Write attributes of a lease by hand, its counter raised; no number among them."""
    names = [f"{name} = :{name}" for name in values]
    fleet.client("dynamodb").update_item(
        TableName=fleet.output("LeaseTable"),
        Key={"leaseKey": {"S": key}},
        UpdateExpression=f"SET {', '.join(names)} ADD leaseCounter :one",
        ExpressionAttributeValues={
            **{f":{name}": {"S": value} for name, value in values.items()},
            ":one": {"N": "1"},
        },
    )


def purge(fleet, part):
    """Empty the queue whose logical id has this part."""
    queues = fleet.fleet.stack.of_type("AWS::SQS::Queue")
    (found,) = (physical for logical, physical in queues.items() if part in logical)
    sqs = fleet.client("sqs")
    url = sqs.get_queue_url(QueueName=found.rpartition("/")[2])["QueueUrl"]
    sqs.purge_queue(QueueUrl=url)


def running(fleet):
    machine = fleet.output("StateMachineArn")
    found = fleet.client("stepfunctions").list_executions(
        stateMachineArn=machine, statusFilter="RUNNING"
    )
    return [execution["executionArn"] for execution in found["executions"]]


def stop_executions(fleet):
    states = fleet.client("stepfunctions")
    for execution in eventually(lambda: running(fleet), what="a running execution"):
        with contextlib.suppress(ClientError):  # It ended by itself.
            states.stop_execution(executionArn=execution)


def turns_begun(fleet):
    """Return how many turns all slots have begun: each claims the next epoch."""
    found = fleet.client("dynamodb").query(
        TableName=fleet.output("StateTable"),
        KeyConditionExpression="kind = :kind",
        ExpressionAttributeValues={":kind": {"S": "slot"}},
        ConsistentRead=True,
    )
    return sum(int(item["body"]["M"]["epoch"]["N"]) for item in found["Items"])


def kill_a_busy_worker(fleet, *, but_not=()):
    def busy():
        return [each.pid for each in fleet.fleet.workers() if each.busy and each.pid not in but_not]

    pid = eventually(busy, what="a busy worker")[0]
    fleet.fleet.kill(pid)
    return pid


def test_a_record_that_fails_for_good_is_lag_and_in_the_end_loss(fleet):
    """handler_errors, stopped_shards, lag, data_loss, page"""
    fleet.put(b"poison", keys=("a",))
    fleet.wait_for("ALARM", "stopped_shards", "broken", "lag", "data_loss", "page")

    (fleet.steer / "cured").touch()
    fleet.resume()
    fleet.wait_for("OK", "handler_errors", "stopped_shards", "lag", "data_loss", "page")
    (fleet.steer / "cured").unlink()


def test_a_record_that_fails_again_and_again_is_handler_errors(fleet):
    fleet.put(b"poison", keys=("a",))
    fleet.wait_for("ALARM", "handler_errors", "trouble")

    (fleet.steer / "cured").touch()
    fleet.resume()
    fleet.wait_for("OK", "handler_errors", "stopped_shards", "broken", "trouble", "page")
    (fleet.steer / "cured").unlink()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH (Debian: chromium)")
def test_the_dashboard_in_a_browser_shows_the_alarm_that_is_red(fleet, tmp_path):
    def reading():
        now_ms = int(time.time() * 1000)
        return FleetReading(
            at_ms=now_ms,
            leases=fleet.fleet.leases(),
            slots=(),
            sightings={},
            stops={},
            planned_ms=now_ms,
            failover_ms=10_000,
        )

    fleet.put(b"poison", keys=("a",))
    fleet.wait_for("ALARM", "stopped_shards", "lag")
    (name,) = fleet.fleet.stack.of_type("AWS::CloudWatch::Dashboard").values()
    gatherer = Gatherer(fleet.fleet.aws.client, name)
    shown = ShownFleet(title="ShardFleetStack", options="", reading=reading)
    with DashboardServer(gatherer, fleet=shown, minutes=5) as server:
        text = look(server.url, tmp_path)

    red = set(re.findall(r'<b class="alarm" data-alarm="(\w+)"', text))
    assert {"stopped_shards", "lag", "page"} <= red
    assert "throttles" not in red
    assert "shardId-000000000001" in text
    (fleet.steer / "cured").touch()
    fleet.resume()
    fleet.wait_for("OK", "stopped_shards", "lag", "page")
    (fleet.steer / "cured").unlink()


def test_a_paused_fleet_rings_for_its_lag_and_not_for_missing_workers(fleet):
    rung = set()

    def look_for(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            rung.update(name for name, state in fleet.states().items() if state == "ALARM")
            time.sleep(1)

    with fed(fleet):
        fleet.command("pause", "--all", "--yes")
        # Twice as long as the longest of these alarms looks back: ten of its minutes.
        look_for(2 * 10 * 60 * SCALE)
        fleet.command("resume", "--all", "--yes")
    assert "lag" in rung
    assert not rung & {"unclaimed_leases", "silent", "slots_missing", "unknown_lag", "manager"}
    fleet.wait_for("OK", "lag", "data_loss", "page")


def test_a_handler_that_hangs_is_silence_and_a_fleet_that_never_catches_up(fleet):
    (fleet.steer / "hang").touch()
    with fed(fleet):
        fleet.wait_for("ALARM", "silent", "never_caught_up", "lag", "data_loss", "page")
        (fleet.steer / "hang").unlink()
        fleet.wait_for("OK", "silent", "page")
    fleet.wait_for("OK", "never_caught_up")


def test_records_on_one_key_make_a_hot_shard(fleet):
    with fed(fleet, keys=("a",) * 400), fed(fleet, pause_s=0.2):
        fleet.wait_for("ALARM", "hot_shard")
    fleet.wait_for("OK", "hot_shard")


def test_a_dead_manager_with_its_schedule_off_pages(fleet):
    with schedule_changed(fleet, State=lambda _: "DISABLED"):
        for each in fleet.fleet.managers():
            fleet.fleet.kill(each.pid)
        fleet.wait_for("ALARM", "manager", "page")
    fleet.wait_for("OK", "manager", "page")


def test_a_schedule_whose_target_is_gone_pages_until_its_dead_letters_are_purged(fleet):
    def to_nowhere(target):
        return {**target, "Arn": target["Arn"] + "-gone"}

    with schedule_changed(fleet, Target=to_nowhere):
        fleet.wait_for("ALARM", "schedule", "manager", "page")
    purge(fleet, "DeadLetters")
    fleet.wait_for("OK", "schedule")


def test_a_stopped_execution_is_told_and_its_slot_starts_again(fleet):
    """Its invocation runs on, as on AWS: the slot starts again when that is over."""
    stop_executions(fleet)
    fleet.wait_for("ALARM", "executions")
    fleet.wait_for("OK", "executions")
    kill_a_busy_worker(fleet)
    eventually(lambda: running(fleet), what="the slot's next execution")
    fleet.wait_for("ALARM", "trouble")
    fleet.wait_for("OK", "trouble")


def test_workers_killed_again_and_again_are_worker_errors(fleet):
    killed = []
    for _ in range(4):
        begun = turns_begun(fleet)
        killed.append(kill_a_busy_worker(fleet, but_not=killed))
        # One that dies while it initialises is started again within the same invocation.
        eventually(lambda begun=begun: turns_begun(fleet) > begun, what="the next worker's turn")
    fleet.wait_for("ALARM", "worker_errors", "trouble")
    fleet.wait_for("OK", "worker_errors")


def test_without_the_right_to_start_workers_leases_are_unclaimed_and_their_lag_unknown(fleet):
    with without_right(fleet, "FleetManagerRole", "Slots"):
        # The slots end in good order, so nothing is left that could tell a lag; none can start.
        fleet.command("drain", "--yes")
        fleet.command("resume", "--all", "--yes")
        fleet.wait_for("ALARM", "unclaimed_leases", "slots_missing", "unknown_lag", "page")
        fleet.wait_for("ALARM", "uncovered", "trouble")
    fleet.wait_for("OK", "unclaimed_leases", "slots_missing", "unknown_lag", "page")
    with without_right(fleet, "FleetManagerRole", "Slots"):
        # A worker that is lost, and of which nothing can be found out, is missing as well.
        stop_executions(fleet)
        kill_a_busy_worker(fleet)
        fleet.wait_for("ALARM", "unclaimed_leases", "slots_missing")
    fleet.wait_for("OK", "unclaimed_leases", "slots_missing", "data_loss", "page")


def test_a_function_without_concurrency_is_lambda_throttles(fleet):
    functions, name = fleet.client("lambda"), fleet.output("ManagerFunction")
    functions.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=0)

    def refused():
        with contextlib.suppress(functions.exceptions.TooManyRequestsException):
            functions.invoke(FunctionName=name, InvocationType="RequestResponse")
        return {fleet.states()[name] for name in ("lambda_throttles", "manager")} == {"ALARM"}

    eventually(refused, what=lambda: f"lambda_throttles: {fleet.states()}")
    functions.delete_function_concurrency(FunctionName=name)
    fleet.wait_for("OK", "lambda_throttles", "manager")


def test_reads_that_kinesis_throttles_are_throttles(fleet):
    with fed(fleet):
        fleet.fleet.inject({"Kind": "ThrottleReads", "DurationMs": 40_000})
        fleet.wait_for("ALARM", "throttles", "trouble")
        fleet.wait_for("OK", "throttles", "lag", "silent")


def test_turns_that_cannot_list_shards_are_manager_errors(fleet):
    fault = {"Kind": "Failure", "Operation": "ListShards", "Code": "LimitExceededException"}
    # Until it rings, for on a busy machine three turns may take longer than one of its periods.
    fleet.fleet.inject({**fault, "DurationMs": 240_000})
    fleet.wait_for("ALARM", "manager_errors", "trouble")
    fleet.fleet.clear_faults()
    fleet.wait_for("OK", "manager_errors", "manager", "page")


def test_a_finished_lease_of_an_open_shard_pages(fleet):
    """As a person's or another program's mistake in the table: nobody would ever read the shard."""
    lease = fleet.fleet.leases()[0]
    change_lease(fleet, lease.lease_key, checkpoint="SHARD_END")
    fleet.wait_for("ALARM", "unread_shards", "holes", "uncovered", "page")

    change_lease(fleet, lease.lease_key, checkpoint=lease.checkpoint.sequence_number)
    kill_a_busy_worker(fleet)  # A turn that has seen a shard finished reads it no more.
    fleet.wait_for("OK", "unread_shards", "holes", "unknown_lag", "page")


def test_an_item_of_the_lease_table_that_nobody_can_read_pages(fleet):
    lease = fleet.fleet.leases()[0]
    change_lease(fleet, lease.lease_key, checkpoint="no number")
    fleet.wait_for("ALARM", "unreadable_leases", "broken", "page")

    change_lease(fleet, lease.lease_key, checkpoint=lease.checkpoint.sequence_number)
    fleet.wait_for("OK", "unreadable_leases", "unclaimed_leases", "unknown_lag", "page")


def ids_of(fleet, lease_key):
    """Return the id that a document of each kind has beside this lease."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    others = {"slot": "s0001", "prompt": "manager", "stream": "identity", "ledger *": "s0001"}
    return {kind.replace("*", day): others.get(kind, lease_key) for kind in WORKER_KINDS}


def test_nonsense_that_a_worker_s_role_writes_into_each_kind_stops_nobody_and_is_mended(fleet):
    """With IAM enforced; each kind that the role may write, beside one of two shards."""
    ill, well = sorted(fleet.fleet.leases(), key=lambda lease: lease.lease_key)
    spoiled = ids_of(fleet, ill.lease_key)
    order = {"table": fleet.output("StateTable"), "documents": sorted(spoiled.items())}
    (fleet.steer / "nonsense").write_text(json.dumps(order))
    with fed(fleet):
        eventually((fleet.steer / "nonsense.done").exists, what="the handler has written")
        began = time.monotonic()
        fleet.wait_for("ALARM", "unreadable_documents", "trouble")
        assert time.monotonic() - began < 120
        names = {f"{kind}/{name}" for kind, name in spoiled.items()}
        told = eventually(
            lambda: {name for name in names if name in fleet.command("documents")},
            what="what cannot be read is shown",
        )
        assert told
        before = checkpoint_of(fleet, well)
        eventually(lambda: checkpoint_of(fleet, well) > before, what="the other shard is read on")

        fleet.command("documents", "--mend", "--yes")
        window = f"window/{ill.lease_key}"
        if window in fleet.command("documents"):
            fleet.command("documents", window, "--drop", "--yes")
        fleet.resume()
        before = checkpoint_of(fleet, ill)
        eventually(lambda: checkpoint_of(fleet, ill) > before, what="the shard goes on")
    fleet.wait_for("OK", "unreadable_documents", "stopped_shards")
    assert "Every document of the fleet state can be read." in fleet.command("documents")


def checkpoint_of(fleet, lease):
    found = {each.lease_key: each.checkpoint for each in fleet.fleet.leases()}
    return found[lease.lease_key]


def test_a_lease_that_somebody_deletes_is_made_again_and_told(fleet):
    with fed(fleet):
        lease = eventually(
            lambda: next(
                (le for le in fleet.fleet.leases() if not le.checkpoint.is_sentinel), None
            ),
            what="a lease that has been read",
        )
    # Its shard is read again from the oldest record, the poison of other tests included.
    (fleet.steer / "cured").touch()
    key = {"leaseKey": {"S": lease.lease_key}}
    fleet.client("dynamodb").delete_item(TableName=fleet.output("LeaseTable"), Key=key)
    fleet.wait_for("ALARM", "lost_leases", "trouble")

    def is_read_again():
        found = {each.lease_key: each for each in fleet.fleet.leases()}
        again = found.get(lease.lease_key)
        return again is not None and again.checkpoint >= lease.checkpoint

    eventually(is_read_again, what=lambda: f"read again: {fleet.fleet.leases()}")
    (fleet.steer / "cured").unlink()
    fleet.wait_for("OK", "lost_leases", "holes", "unclaimed_leases", "unknown_lag", "lag")


def test_a_shard_that_left_the_stream_unread_pages_and_ends_when_a_person_says_so(fleet):
    """stopped_shards, records_lost, page"""
    shard_id = fleet.unread_shard()
    fleet.wait_for("ALARM", "stopped_shards", "page")
    fleet.command("release", shard_id, "--ended", "--yes")
    fleet.wait_for("ALARM", "records_lost", "broken", "page")
    fleet.wait_for("OK", "records_lost", "stopped_shards", "page")


def test_another_application_on_the_lease_table_is_lease_churn(fleet):
    """Its period is an hour: shortened to 12 s here instead of six minutes."""
    fleet.fleet.aws.scale_alarm_periods(SCALE / 30)
    try:
        fleet.wait_for("OK", "lease_churn")
        held = next(lease for lease in fleet.fleet.leases() if not lease.is_finished)
        change_lease(fleet, held.lease_key, leaseOwner="another-application")
        fleet.see("ALARM", "lease_churn", "trouble")
        fleet.wait_for("OK", "lease_churn")
    finally:
        fleet.fleet.aws.scale_alarm_periods(SCALE)


def test_a_given_up_record_that_nobody_looks_at_is_told_and_then_pages(quarantined):
    fleet = quarantined
    fleet.put(b"poison", keys=("a",))
    fleet.wait_for("ALARM", "quarantine", "trouble")
    fleet.wait_for("ALARM", "quarantine_age", "page")

    purge(fleet, "FailedRecords")
    fleet.wait_for("OK", "quarantine", "quarantine_age")


def test_as_many_workers_as_are_reserved_is_concurrency(quarantined):
    kinesis, stream = quarantined.client("kinesis"), quarantined.output("StreamName")
    whole = 2**128
    kinesis.split_shard(
        StreamName=stream,
        ShardToSplit="shardId-000000000000",
        NewStartingHashKey=str(whole // 2),
    )
    quarantined.wait_for("ALARM", "concurrency")

    eventually(
        lambda: (
            kinesis.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"][
                "StreamStatus"
            ]
            == "ACTIVE"
        ),
        what="an active stream",
    )
    kinesis.merge_shards(
        StreamName=stream,
        ShardToMerge="shardId-000000000001",
        AdjacentShardToMerge="shardId-000000000002",
    )
    quarantined.wait_for("OK", "concurrency")


def test_every_alarm_of_the_run_book_was_driven(fleet, quarantined):
    """The names that the tests above wait for, read from this file, are all that are deployed."""
    text = Path(__file__).read_text("utf-8")
    driven = {name for name in quarantined.names.keys() | fleet.names.keys() if f'"{name}"' in text}

    assert driven == quarantined.names.keys() | fleet.names.keys()
