"""The commands against a deployed fleet: from nothing but the stack's name and the endpoint."""

import json
import time

import pytest

from shardfleet_ops.cli import app as application
from tests.end_to_end.cloud import UNKIND, deployed, wait_until

pytestmark = pytest.mark.processes

ORDERS, POISONED = 20, 7
# A key of its own: arrival times are approximate (K28), so another record of the key may be the
# first since the one that this record tells.
KEY_OF_POISON = "customer-7"
DEADLINE_S = 90

BAD = "shardId-000000000099"


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """Two shards of orders; one order cannot be shipped, and stops its shard."""
    folder = tmp_path_factory.mktemp("cli")
    environment = {
        "ORDERS_CALLS": str(folder / "calls.jsonl"),
        "ORDERS_CURED": str(folder / "cured"),
    }
    with deployed(
        folder,
        handler="powertools",
        function="orders:handler",
        environment=environment,
        config={"max_attempts": 2, "max_workers": 1, "max_retry_ms": 300, "log_errors": True},
        shards=2,
        behaviour=UNKIND,
    ) as fleet:
        kinesis = fleet.client("kinesis")
        for number in range(ORDERS):
            kinesis.put_record(
                StreamName=fleet.outputs["StreamName"],
                PartitionKey=KEY_OF_POISON if number == POISONED else f"customer-{number % 3}",
                Data=json.dumps({"number": number, "poison": number == POISONED}).encode(),
            )
        yield fleet


@pytest.fixture
def ask(shop, monkeypatch, capsys):
    """Run a command with --json as a person in that account would."""
    for name, value in shop.aws.environment().items():
        monkeypatch.setenv(name, value)

    def run(*arguments):
        assert application.run(list(arguments)) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return run


def until(ask, command, condition, what, fleet):
    def answer():
        found = json.loads(ask(*command, "--json"))
        return found if condition(found) else None

    return wait_until(answer, what=what, within_s=DEADLINE_S, fleet=fleet)


def test_a_stack_that_is_no_fleet_is_named_with_what_to_do(ask, capsys):
    assert application.run(["status", "--stack", "Nonsense"]) == application.EXIT_WRONG_INPUT
    assert "--stack Nonsense" in capsys.readouterr().err


def test_a_failing_record_is_seen_found_cured_and_passed(shop, ask):
    def one_is_stopped(rows):
        return [row["state"] for row in rows].count("STOPPED") == 1

    rows = until(ask, ["leases"], one_is_stopped, "a stopped shard", shop)
    (stopped,) = [row for row in rows if row["state"] == "STOPPED"]
    assert f"order {POISONED} cannot be shipped" in stopped["why"]
    assert stopped["owner"]
    assert json.loads(ask("status", "--json"))["leases"]["STOPPED"] == 1

    lines = ask("tail", "--since", "10m", "--records", str(ORDERS), "--json").splitlines()
    records = [json.loads(line) for line in lines]
    assert sorted(json.loads(record["data"])["number"] for record in records) == list(range(ORDERS))
    (poison,) = [r for r in records if json.loads(r["data"])["number"] == POISONED]
    assert poison["shard_id"] == stopped["lease_key"]

    at = str(poison["arrived_ms"])
    where = ["where", "--key", KEY_OF_POISON, "--at", at]
    found = json.loads(ask(*where, "--json"))
    assert found["state"] == "STOPPED"
    assert found["sequence_number"] == poison["sequence_number"]

    (shop.folder / "cured").touch()
    assert f"{stopped['lease_key']} goes on from" in ask("resume", stopped["lease_key"], "--yes")
    found = until(ask, where, lambda it: it["state"] == "PROCESSED", "the cured order", shop)
    assert found["owner"] == stopped["owner"]
    assert "processed: the shard's checkpoint has passed it." in ask(*where)
    assert json.loads(ask("status", "--json"))["leases"] == {"READING": 2}


def test_every_lease_and_its_worker_are_explained_by_what_the_manager_kept(shop, ask):
    def all_are_explained(found):
        return all(each["since_ms"] for each in found) and len(found) == len(shop.leases())

    found = until(ask, ["explain"], all_are_explained, "a note about every lease", shop)
    for each in found:
        one = json.loads(ask("explain", each["subject"], "--json"))
        assert [event["what"] for event in one["story"]][:1] == ["CREATED"]
        assert "ASSIGNED" in {event["what"] for event in one["story"]}
        assert one["owner"] in one["why"]
        for text in (one["now"], one["why"], *(event["text"] for event in one["story"])):
            assert text.endswith("."), text
            assert not any(terse in text for terse in ("unowned", " holds ", "expired under")), text
        told = ask("explain", one["owner"])
        assert "is running" in told
        assert each["subject"] in told


def test_a_forecast_gives_every_lease_a_place_and_changes_nothing(shop, ask):
    owners = {key: lease.get("leaseOwner") for key, lease in shop.leases().items()}
    slots = shop.documents("slot").keys()
    forecast = json.loads(ask("what-if", "--workers", "2", "--json"))
    assert forecast["settled"]
    assert sorted(key for held in forecast["after"].values() for key in held) == sorted(owners)
    assert len(forecast["after"]) == 2
    assert {key: lease.get("leaseOwner") for key, lease in shop.leases().items()} == owners
    assert shop.documents("slot").keys() == slots


def test_cost_knows_the_fleets_own_settings_and_the_stream(shop, ask):
    found = json.loads(ask("cost", "--json"))
    worker = shop.client("lambda").get_function_configuration(
        FunctionName=shop.outputs["WorkerFunction"]
    )
    assert (found["estimate"]["shards"], found["estimate"]["workers"]) == (2, 1)
    gb_seconds = 730 * 3_600 * worker["MemorySize"] / 1_024
    assert found["estimate"]["awake"]["by_item"]["lambda"] > gb_seconds * 0.0000133334
    assert found["stream_per_month"] == pytest.approx(2 * 730 * 0.015)
    assert "The stream's shards themselves: $21.90 a month" in ask("cost")


def test_top_shows_slots_and_leases_together(shop, ask, monkeypatch):
    monkeypatch.setenv("COLUMNS", "220")
    until(ask, ["leases"], lambda rows: len(rows) == 2, "both leases", shop)
    out = ask("top", "--rounds", "1")
    assert "shardId-000000000001" in out
    assert "s0001" in out


def test_a_key_that_never_came_is_not_found(ask):
    assert "No record of key nobody has arrived since then." in ask("where", "--key", "nobody")


def test_tail_of_one_key_shows_its_records_in_order_as_text(ask):
    lines = ask("tail", "--key", "customer-2", "--since", "10m", "--records", "6").splitlines()

    numbers = [json.loads(line.split(" ", 4)[4])["number"] for line in lines]
    assert numbers == list(range(2, ORDERS, 3))


@pytest.mark.parametrize("aggregate", [[], ["--aggregate"]])
def test_what_is_put_arrives_in_order(ask, tmp_path, aggregate):
    file = tmp_path / "orders.jsonl"
    name = f"put{len(aggregate)}"
    orders = [{"number": 100 + number, "poison": False, "by": name} for number in range(30)]
    file.write_text("".join(json.dumps(order) + "\n" for order in orders))
    put = ["put", "--input", str(file), "--key", "by", *aggregate]

    assert "30 records read; nothing was sent" in ask(*put, "--dry-run")
    sent = json.loads(ask(*put, "--json"))["sent"]
    assert sent["accepted"] == 30
    assert (sent["entries"] == 1) == bool(aggregate)
    lines = ask("tail", "--key", name, "--since", "1m", "--records", "30", "--json").splitlines()
    assert [json.loads(json.loads(line)["data"]) for line in lines] == orders


# --- doctor: last, for it breaks the fleet


def test_the_doctor_finds_nothing_wrong_with_a_fleet_that_runs(ask):
    assert "Nothing is wrong" in ask("doctor")


def plant(shop):
    """Break eleven things of a running fleet, each for a reason of its own."""
    outputs, dynamodb, functions = shop.outputs, shop.client("dynamodb"), shop.client("lambda")
    manager, worker = outputs["ManagerFunction"], outputs["WorkerFunction"]
    for schedule in shop.client("scheduler").list_schedules()["Schedules"]:
        found = shop.client("scheduler").get_schedule(Name=schedule["Name"])
        kept = ("Name", "ScheduleExpression", "FlexibleTimeWindow", "Target")
        again = {name: found[name] for name in kept}
        shop.client("scheduler").update_schedule(**again, State="DISABLED")
    functions.put_function_concurrency(FunctionName=manager, ReservedConcurrentExecutions=0)
    functions.put_function_concurrency(FunctionName=worker, ReservedConcurrentExecutions=0)
    functions.update_function_configuration(FunctionName=worker, Timeout=20)
    variables = functions.get_function_configuration(FunctionName=manager)["Environment"]
    variables["Variables"]["SHARDFLEET_LEASES_PER_WORKER"] = "1"
    functions.update_function_configuration(FunctionName=manager, Environment=variables)
    dynamodb.put_item(TableName=outputs["LeaseTable"], Item={"leaseKey": {"S": "notes"}})
    upgrading = {"cv": {"S": "CLIENT_VERSION_UPGRADE_FROM_2X"}}
    upgrading["entityType"] = {"S": "CLIENT_VERSION_MIGRATION"}
    java = {"lut": {"N": str(int(time.time()))}, "entityType": {"S": "WORKER_METRIC_STATS"}}
    for name, item in (("Migration3.0", upgrading), ("java-1", java)):
        key = {"leaseKey": {"S": name}}
        dynamodb.put_item(TableName=outputs["LeaseTable"], Item=key | item)
    bad = {"leaseKey": {"S": BAD}, "leaseCounter": {"S": "five"}, "checkpoint": {"S": "1"}}
    dynamodb.put_item(TableName=outputs["LeaseTable"], Item=bad)
    overwrite(shop, "stream", "identity", "created_ms", 1)
    overwrite(shop, "plan", "last", "at_ms", 1)
    dynamodb.update_table(
        TableName=outputs["LeaseTable"],
        GlobalSecondaryIndexUpdates=[{"Delete": {"IndexName": "LeaseOwnerToLeaseKeyIndex"}}],
    )


def overwrite(shop, kind, name, field, value):
    shop.client("dynamodb").update_item(
        TableName=shop.outputs["StateTable"],
        Key={"kind": {"S": kind}, "id": {"S": name}},
        UpdateExpression="SET body.#field = :value",
        ExpressionAttributeNames={"#field": field},
        ExpressionAttributeValues={":value": {"N": str(value)}},
    )


def test_the_doctor_names_the_causes_of_eleven_planted_misconfigurations(shop, ask, capsys):
    plant(shop)

    assert application.run(["doctor", "--json"]) == application.EXIT_FAILED
    found = {each["code"]: each["found"] for each in json.loads(capsys.readouterr().out)}
    assert set(found) >= {
        "schedule-disabled",
        "manager-concurrency",
        "worker-concurrency",
        "worker-timeout",
        "foreign-item",
        "malformed-lease",
        "stream-replaced",
        "owner-index",
        # A lease that cannot be read hides nothing else.
        "manager-silent",
        "too-few-slots",
    }
    # Whether its worker owns leases just now, and so is elected, is chance.
    assert found.keys() & {"kcl-upgrade-unfinished", "kcl-upgrade-unled"}
    assert "not-seen" not in found
    assert BAD in found["malformed-lease"]

    key = {"leaseKey": {"S": BAD}}
    shop.client("dynamodb").delete_item(TableName=shop.outputs["LeaseTable"], Key=key)
    assert application.run(["doctor", "--json"]) == application.EXIT_FAILED
    found = {each["code"]: each["found"] for each in json.loads(capsys.readouterr().out)}
    assert "malformed-lease" not in found
    assert set(found) >= {"manager-silent", "too-few-slots"}
