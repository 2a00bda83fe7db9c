"""What was given up goes through the deployed handler again, by the command, IAM enforced."""

import json

import pytest

from shardfleet_ops.cli import app as application
from tests.end_to_end.cloud import deployed, json_lines, wait_until

pytestmark = pytest.mark.processes

ORDERS, POISONED = 12, (3, 7)
KINDS = ("sqs", "s3")


@pytest.fixture(scope="module", params=KINDS)
def shop(request, tmp_path_factory):
    """One shard of orders; two of them cannot be shipped and are given up at once."""
    folder = tmp_path_factory.mktemp("redrive")
    environment = {
        "ORDERS_CALLS": str(folder / "calls.jsonl"),
        "ORDERS_CURED": str(folder / "cured"),
    }
    with deployed(
        folder,
        handler="powertools",
        function="orders:handler",
        environment=environment,
        config={"max_attempts": 1, "max_workers": 1, "on_exhausted": request.param},
    ) as fleet:
        kinesis = fleet.client("kinesis")
        numbers = [
            kinesis.put_record(
                StreamName=fleet.outputs["StreamName"],
                PartitionKey="customer",
                Data=json.dumps({"number": number, "poison": number in POISONED}).encode(),
            )["SequenceNumber"]
            for number in range(ORDERS)
        ]
        wait_until(
            lambda: [each["checkpoint"] for each in fleet.leases().values()] == numbers[-1:],
            what="the last order's checkpoint",
            within_s=120,
            fleet=fleet,
        )
        yield fleet, place_of(fleet, request.param)


def place_of(fleet, kind):
    """Return what the worker's configuration says of where it keeps what it gives up."""
    found = fleet.client("lambda").get_function_configuration(
        FunctionName=fleet.outputs["WorkerFunction"]
    )["Environment"]["Variables"]
    if kind == "sqs":
        return found["SHARDFLEET_FAILED_QUEUE_URL"]
    return f"s3://{found['SHARDFLEET_FAILED_BUCKET']}/shardfleet/failed/"


@pytest.fixture
def ask(shop, monkeypatch, capsys):
    """Run the command with --json as a person in that account would; return code and answer."""
    fleet, place = shop
    for name, value in fleet.aws.environment().items():
        monkeypatch.setenv(name, value)

    def run(*arguments):
        code = application.run(["redrive", "--from", place, "--json", *arguments])
        printed = capsys.readouterr()
        assert printed.out, printed.err
        return code, json.loads(printed.out)

    return run


def test_what_fails_again_is_left_and_once_it_is_cured_it_is_handled_in_order_and_deleted(
    shop, ask
):
    fleet, _ = shop
    code, shown = ask()
    assert (code, shown["written"], len(shown["found"])) == (1, False, len(POISONED))
    assert sum(each["count"] for each in shown["found"]) == len(POISONED)

    code, failed = ask("--yes")
    assert code == 1
    (shard,) = failed["shards"]
    assert (shard["records"], shard["left"]) == (0, len(POISONED))
    assert "BatchProcessingError" in shard["error"]

    calls = json_lines(fleet.folder / "calls.jsonl")
    (fleet.folder / "cured").touch()

    code, done = ask("--yes")
    assert (code, done["shards"][0]["records"], done["shards"][0]["left"]) == (0, len(POISONED), 0)
    later = json_lines(fleet.folder / "calls.jsonl")[len(calls) :]
    assert [call["numbers"] for call in later] == [[number] for number in POISONED]
    code, empty = ask("--yes")
    assert (code, empty["found"]) == (0, [])
