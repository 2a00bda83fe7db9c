"""A user's own handler in a real fleet: what it prints, what it handles, and where it stops."""

import json

import pytest

from shardfleet.local.demo.own_run import OwnRunOptions, own_run
from shardfleet.local.demo.source import read_source

HANDLER = """
import json

def handle(batch):
    for record in batch:
        order = json.loads(record.data)
        if order["amount"] < 0:
            raise ValueError("a negative amount")
        batch.checkpoint(record)
    print("orders", len(batch))
"""


@pytest.mark.processes
def test_a_failing_record_stops_its_shard_at_its_line_and_the_others_go_on(tmp_path):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/orders.py").write_text(HANDLER)
    orders = [{"customer": f"c{n % 20}", "amount": -1 if n == 150 else n} for n in range(300)]
    (tmp_path / "orders.jsonl").write_text("".join(json.dumps(each) + "\n" for each in orders))
    printed = []

    result = own_run(
        OwnRunOptions(
            handler="shop.orders:handle",
            folder=tmp_path,
            source=read_source(str(tmp_path / "orders.jsonl"), "customer"),
            shards=2,
        ),
        say=lambda _: None,
        printed=printed.append,
    )

    assert not result.passed
    (stop,) = result.stops
    assert stop.line == 151
    assert "a negative amount" in stop.note.error
    assert 151 in result.verdict.lost
    assert min(result.verdict.lost) == 151
    assert 150 <= result.verdict.records_handled_distinct < 300
    assert (result.verdict.out_of_order, result.verdict.foreign) == ((), 0)
    assert any(line.startswith("orders ") for line in printed)
