"""A handler on Powertools' public API, importing nothing of shardfleet, runs in the fleet."""

import ast
import json

import pytest

from tests.end_to_end.cloud import HANDLERS, deployed, json_lines, wait_until

pytestmark = pytest.mark.processes

ORDERS = 40
POISONED = 17


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """One shard of orders, of which one cannot be shipped; it is retried for ever."""
    folder = tmp_path_factory.mktemp("powertools")
    environment = {
        "ORDERS_CALLS": str(folder / "calls.jsonl"),
        "ORDERS_CURED": str(folder / "cured"),
    }
    with deployed(
        folder,
        handler="powertools",
        function="orders:handler",
        environment=environment,
        config={"max_attempts": 0, "max_workers": 1},
    ) as fleet:
        yield fleet


def put_orders(fleet):
    """Put the orders one by one and return their sequence numbers."""
    kinesis = fleet.client("kinesis")
    answers = [
        kinesis.put_record(
            StreamName=fleet.outputs["StreamName"],
            PartitionKey=f"customer-{number % 5}",
            Data=json.dumps({"number": number, "poison": number == POISONED}).encode(),
        )
        for number in range(ORDERS)
    ]
    return [answer["SequenceNumber"] for answer in answers]


def checkpoint_of(fleet):
    (lease,) = fleet.leases().values()
    return lease["checkpoint"]


def test_the_handler_imports_nothing_of_shardfleet():
    tree = ast.parse((HANDLERS / "powertools/orders.py").read_text("utf-8"))
    modules = [
        *(
            name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for name in node.names
        ),
        *(node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)),
    ]

    assert not [module for module in modules if module.startswith("shardfleet")]


def test_partial_failures_hold_the_checkpoint_at_the_right_record(shop):
    numbers = put_orders(shop)
    calls = shop.folder / "calls.jsonl"

    def held():
        failed = [call for call in json_lines(calls) if call["reply"]["batchItemFailures"]]
        return len(failed) >= 3 and checkpoint_of(shop) == numbers[POISONED - 1]

    wait_until(held, what="a checkpoint just before the order that fails", within_s=90, fleet=shop)
    retried = [call for call in json_lines(calls) if POISONED in call["numbers"]]
    assert [call["numbers"][0] for call in retried[1:]] == [POISONED] * (len(retried) - 1)
    assert all(
        call["reply"]["batchItemFailures"] == [{"itemIdentifier": numbers[POISONED]}]
        for call in retried
    )

    (shop.folder / "cured").touch()

    wait_until(
        lambda: checkpoint_of(shop) == numbers[-1],
        what="the last order's checkpoint",
        within_s=90,
        fleet=shop,
    )
    handled = {number for call in json_lines(calls) for number in call["numbers"]}
    assert handled == set(range(ORDERS))


def test_powertools_parser_accepts_the_event_and_the_context_has_a_deadline(shop):
    calls = wait_until(
        lambda: json_lines(shop.folder / "calls.jsonl"), what="a call", within_s=90, fleet=shop
    )

    assert all(call["event_ids"][0].startswith("shardId-000000000000:") for call in calls)
    assert all(0 < call["remaining_ms"] <= 60_000 for call in calls)
