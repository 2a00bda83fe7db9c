"""
A fleet on the embedded AWS under a steady load, and what its ledger says.

Shared by the benchmarks that measure how long something takes in a deployed fleet: real processes,
real HTTP, the template that is deployed. Records come to every open shard at the same pace; the
ledger (`shardfleet_local.rig.probe`) has each handled batch with its time and process.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boto3.dynamodb.types import TypeDeserializer

from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.stream.hash_ranges import HASH_KEY_MAX
from shardfleet.engine.state.kinds import SLOT
from shardfleet_local.rig.fleet import FleetPlan, RunningFleet, running_fleet
from shardfleet_local.rig.ledger import LedgerLine
from shardfleet_local.rig.probe.ledger_probe import digest

HANDLER = Path(__file__).resolve().parent / "steady_handler"
TICK_S = 0.1
_HASH_PLACES = 1024  # records go round the hash space in so many steps


class SteadyFeed(threading.Thread):
    """
    Puts records at a steady pace all over the hash space until it is stopped.

    Attributes:
        sent: digest of a record to when the stream had accepted it, epoch milliseconds.

    """

    def __init__(self, fleet: RunningFleet, *, records_per_s: float, name: str = "record") -> None:
        super().__init__(name=name, daemon=True)
        self._client = fleet.aws.client("kinesis")
        self._stream = fleet.stream_name
        self._per_s = records_per_s
        self._over = threading.Event()
        self.sent: dict[str, int] = {}

    def run(self) -> None:
        """Put what is due, ten times a second; what is refused is put again."""
        began, number = time.monotonic(), 0
        waiting: list[Any] = []
        while not self._over.wait(TICK_S) or waiting:
            due = int((time.monotonic() - began) * self._per_s)
            if not self._over.is_set():
                waiting += [self._record(n) for n in range(number, due)]
                number = max(number, due)
            waiting = self._put(waiting[:500]) + waiting[500:]

    def _record(self, number: int) -> dict[str, Any]:
        place = number % _HASH_PLACES * 617 % _HASH_PLACES
        return {
            "PartitionKey": f"key-{place}",
            "Data": f"{self.name} {number}".encode(),
            "ExplicitHashKey": str(place * ((HASH_KEY_MAX + 1) // _HASH_PLACES)),
        }

    def _put(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if not records:
            return []
        answer = self._client.put_records(StreamName=self._stream, Records=records)
        now_ms = time.time_ns() // 1_000_000
        refused = []
        for record, result in zip(records, answer["Records"], strict=True):
            if "ErrorCode" in result:
                refused.append(record)
            else:
                self.sent[digest(record["PartitionKey"], record["Data"])] = now_ms
        return refused

    def stop(self) -> None:
        """Stop, once everything that was begun is accepted."""
        self._over.set()
        self.join()


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """
    What was sent against what was handled.

    Attributes:
        sent: accepted by the stream.
        lost: sent and never handled.
        duplicates: handled again.
        foreign: handled and never sent.

    """

    sent: int
    lost: int
    duplicates: int
    foreign: int


class FleetUnderLoad:
    """A deployed fleet, its feed, and its ledger."""

    def __init__(self, fleet: RunningFleet, feed: SteadyFeed) -> None:
        self.fleet = fleet
        self.feed = feed

    def lines(self) -> list[LedgerLine]:
        """Return the whole ledger, in the order in which batches ended."""
        self.fleet.ledger.read()
        return self.fleet.ledger.lines

    def slots(self) -> dict[str, Slot]:
        """Read the slot records, by worker id."""
        slots = [SLOT.read(body, body["slot_id"]) for body in self.documents("slot")]
        return {slot.worker_id: slot for slot in slots}

    def documents(self, kind: str) -> list[dict[str, Any]]:
        """Read the bodies of the fleet state's documents of a kind."""
        found = self.fleet.aws.client("dynamodb").query(
            TableName=self.fleet.stack.outputs["StateTable"],
            KeyConditionExpression="kind = :kind",
            ExpressionAttributeValues={":kind": {"S": kind}},
            ConsistentRead=True,
        )
        return [_plain(item)["body"] for item in found["Items"]]

    def owners(self) -> dict[str, str | None]:
        """Return who reads each unfinished shard; None: nobody, or it is just changing hands."""
        return {
            lease.lease_key: lease.lease_owner if lease.checkpoint_owner is None else None
            for lease in self.fleet.leases()
            if not lease.is_finished
        }

    def pid_of(self, shard_id: str) -> int | None:
        """Return the process that handled the last batch of a shard."""
        self.lines()
        return {line.shard_id: line.pid for line in self.fleet.ledger.lines}.get(shard_id)

    def is_settled(self, *, workers: int) -> bool:
        """Tell whether so many workers run, hold everything, and have handled records of theirs."""
        owners = self.owners()
        running = [s for s in self.slots().values() if s.state is SlotState.RUNNING]
        return (
            len(running) >= workers
            and len(set(owners.values())) >= workers
            and handled_by_their_owners(owners, self.lines())
        )

    def drained(self) -> bool:
        """Tell whether everything that was sent has been handled."""
        handled = {row.digest for line in self.lines() for row in line.records}
        return handled >= self.feed.sent.keys()

    def delivered(self) -> Delivered:
        """Compare what was sent with what was handled."""
        times = Counter(row.digest for line in self.lines() for row in line.records)
        return Delivered(
            sent=len(self.feed.sent),
            lost=len(self.feed.sent.keys() - times.keys()),
            duplicates=sum(times.values()) - len(times),
            foreign=len(times.keys() - self.feed.sent.keys()),
        )


def handled_by_their_owners(owners: Mapping[str, str | None], lines: Iterable[LedgerLine]) -> bool:
    """
    Tell whether each shard's last batch was handled by the process of its owner.

    It takes a while after a lease has changed hands. Whoever then asks for the process of a shard
    (`FleetUnderLoad.pid_of`) is told the one before.
    """
    last = {line.shard_id: line.pid for line in lines}
    processes: dict[str | None, set[int | None]] = {}
    for shard_id, owner in owners.items():
        processes.setdefault(owner, set()).add(last.get(shard_id))
    each = [process for found in processes.values() for process in found]
    return (
        None not in processes and None not in each and len(set(each)) == len(processes) == len(each)
    )


def _plain(item: Mapping[str, Any]) -> dict[str, Any]:
    def as_python(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: as_python(each) for key, each in value.items()}
        if isinstance(value, list):
            return [as_python(each) for each in value]
        return int(value) if type(value).__name__ == "Decimal" else value

    found: dict[str, Any] = as_python(TypeDeserializer().deserialize({"M": item}))
    return found


@contextlib.contextmanager
def fleet_under_load(
    *,
    shards: int,
    config: Mapping[str, Any],
    records_per_s: float,
    per_record_ms: float = 1.0,
    worker: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = print,
) -> Iterator[FleetUnderLoad]:
    """Deploy the stack, feed its stream, and stop all at the end."""
    context = {
        "shardfleet:stream": {"shards": shards},
        "shardfleet:handler": str(HANDLER),
        "shardfleet:function": "steady:handle",
        "shardfleet:config": dict(config),
        "shardfleet:worker": dict(worker or {}),
    }
    plan = FleetPlan(context=context, environment={"STEADY_PER_RECORD_MS": str(per_record_ms)})
    with (
        tempfile.TemporaryDirectory(prefix="shardfleet-bench-") as folder,
        running_fleet(Path(folder) / "ledger.jsonl", plan, say=say) as fleet,
    ):
        feed = SteadyFeed(fleet, records_per_s=records_per_s)
        feed.start()
        try:
            yield FleetUnderLoad(fleet, feed)
        finally:
            feed.stop()


def wait_until(condition: Callable[[], Any], *, what: str, within_s: float) -> Any:
    """
    Look until a condition holds, and return its value.

    Raises:
        TimeoutError: it does not in time.

    """
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s} s: {what}")
        time.sleep(0.05)
    return value
