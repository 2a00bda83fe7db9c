"""How long a deployed fleet takes for what it has to do quickly, again and again."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from embedded_fleet import FleetUnderLoad, fleet_under_load, wait_until

Say = Callable[[str], None]
QUIET_S = 62.0
"""A crash is the first again after a minute of running well (hazard H9)."""


@dataclass(frozen=True, kw_only=True)
class TimeLine:
    """
    One thing that must not take long.

    Attributes:
        name: what it is.
        took_s: each repetition.
        most_s: what is allowed.
        kcl: what the KCL's own documentation and code say of the same.
        remark: what a repetition is.

    """

    name: str
    took_s: tuple[float, ...]
    most_s: float
    kcl: str
    remark: str

    def row(self) -> dict[str, Any]:
        """Return it JSON-like."""
        return {
            "name": self.name,
            "median_s": round(statistics.median(self.took_s), 2),
            "max_s": round(max(self.took_s), 2),
            "repetitions": len(self.took_s),
            "allowed_s": self.most_s,
            "met": max(self.took_s) <= self.most_s,
            "kcl": self.kcl,
            "remark": self.remark,
            "took_s": [round(each, 2) for each in self.took_s],
        }


def first_deploys(count: int, say: Say) -> TimeLine:
    """Deploy a fleet again and again, each time into a new account."""
    took = []
    for number in range(count):
        with fleet_under_load(shards=4, config={}, records_per_s=50, say=lambda _: None) as load:
            created_ms = _now_ms()
            line, *_ = wait_until(load.lines, what="a first record", within_s=180)
            took.append((line.at_ms - created_ms) / 1000)
        say(f"first record after deployment {number + 1}: {took[-1]:.2f} s")
    return TimeLine(
        name="first deployment to first record",
        took_s=tuple(took),
        most_s=15.0,
        kcl="about 4 minutes with KCL 3 (its issue 1432: index, lock, metrics, interval)",
        remark="from the completion of the stack to the end of the first handler call",
    )


def crashes(count: int, say: Say) -> TimeLine:
    """Kill a worker's process with SIGKILL, one worker after the other."""
    workers = 6
    config = {
        "min_workers": workers,
        "max_workers": workers,
        "leases_per_worker": 2,
        "assignment": "count",
    }
    took: list[float] = []
    with fleet_under_load(shards=workers, config=config, records_per_s=120, say=say) as load:
        wait_until(lambda: load.is_settled(workers=workers), what="a settled fleet", within_s=240)
        shards = sorted(load.owners())
        for number in range(count):
            shard_id = shards[number % len(shards)]
            victim = load.pid_of(shard_id)
            assert victim is not None
            killed_ms = _now_ms()
            os.kill(victim, signal.SIGKILL)
            back_ms = _back_ms(load, shard_id, pid=victim, after_ms=killed_ms)
            took.append((back_ms - killed_ms) / 1000)
            say(f"crash {number + 1}: {took[-1]:.2f} s")
            time.sleep(QUIET_S / workers)
    return TimeLine(
        name="crash of a turn to the next record",
        took_s=tuple(took),
        most_s=3.0,
        kcl="20 to 40 s after the last renewal, plus up to 10 s of discovery (§1.7)",
        remark="from SIGKILL to the end of the next handler call of that worker's shard",
    )


def lost_slots(count: int, say: Say) -> TimeLine:
    """Stop a worker's execution and kill its process: nobody invokes it again."""
    workers = 4
    config = {"min_workers": workers, "max_workers": workers, "leases_per_worker": 8}
    took: list[float] = []
    with fleet_under_load(shards=2 * workers, config=config, records_per_s=160, say=say) as load:
        for number in range(count):
            wait_until(lambda: load.is_settled(workers=workers), what="settled", within_s=240)
            time.sleep(1.7 * (number % 5))  # Not always at the same moment of the manager's cycle.
            owners = load.owners()
            worker_id = max(sorted(set(filter(None, owners.values()))), key=_turn_of(number))
            shards = [key for key, owner in owners.items() if owner == worker_id]
            victims = {key: load.pid_of(key) for key in shards}
            lost_ms = _now_ms()
            _abort(load, worker_id, set(filter(None, victims.values())))
            for key in shards:
                back_ms = _back_ms(load, key, pid=victims[key], after_ms=lost_ms)
                took.append((back_ms - lost_ms) / 1000)
            say(f"lost slot {number + 1}: {[round(t, 1) for t in took[-len(shards) :]]} s")
    return TimeLine(
        name="lost slot to the next record",
        took_s=tuple(took),
        most_s=90.0,  # docs/guarantees.md: the schedule finds it where nothing else moves.
        kcl="20 to 40 s after the last renewal, plus up to 10 s of discovery (§1.7)",
        remark="each shard of the slot, from the loss to the end of its next handler call",
    )


def shard_ends(count: int, say: Say) -> TimeLine:
    """Split shards under load, of workers that have room for the children."""
    config = {"min_workers": 2, "max_workers": 2, "leases_per_worker": 64}
    return TimeLine(
        name="shard end to the first record of a child",
        took_s=_split(count, say, config, pause_s=1.0),
        most_s=2.0,
        kcl="the next assignment run, up to 20 s, plus up to 10 s of discovery (§3.1, §1.7)",
        remark="each child, from the end of the parent's last handler call to that of its first",
    )


def crowded_splits(count: int, say: Say) -> TimeLine:
    """Split shards of workers that have no room, while the manager is calm: another one starts."""
    config = {"max_workers": 2 + count, "leases_per_worker": 1}
    return TimeLine(
        name="shard end to the first record of a child that found no room",
        took_s=_split(count, say, config, pause_s=QUIET_S + 20.0)[1::2],
        most_s=15.0,
        kcl="the next assignment run, up to 20 s, plus up to 10 s of discovery (§3.1, §1.7)",
        remark="the later child of each, as above",
    )


def _split(count: int, say: Say, config: Mapping[str, int], *, pause_s: float) -> tuple[float, ...]:
    """Return how long both children of each split waited, the earlier one first, in seconds."""
    took: list[float] = []
    with fleet_under_load(shards=2, config=config, records_per_s=200, say=say) as load:
        wait_until(lambda: load.is_settled(workers=2), what="a settled fleet", within_s=180)
        for number in range(count):
            time.sleep(pause_s)
            parent, children = _split_widest(load)
            begun = sorted(_back_ms(load, child, pid=None, after_ms=0) for child in children)
            ended_ms = max(line.at_ms for line in load.lines() if line.shard_id == parent)
            took += [(begun_ms - ended_ms) / 1000 for begun_ms in begun]
            say(f"split {number + 1}: {took[-2]:.2f} s and {took[-1]:.2f} s")
    return tuple(took)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _turn_of(number: int) -> Callable[[str | None], int]:
    """Rank workers so that another one is the greatest each time."""
    return lambda worker_id: (int(str(worker_id)[-4:]) + number) % 4


def _back_ms(load: FleetUnderLoad, shard_id: str, *, pid: int | None, after_ms: int) -> int:
    """Wait until a shard was handled after a time by another process; return when."""

    def found() -> int | None:
        for line in load.lines():
            if line.shard_id == shard_id and line.at_ms > after_ms and line.pid != pid:
                return line.at_ms
        return None

    at_ms: int = wait_until(found, what=f"{shard_id} handled again", within_s=180)
    return at_ms


def _abort(load: FleetUnderLoad, worker_id: str, pids: set[int]) -> None:
    slot = load.slots()[worker_id]
    client = load.fleet.aws.client("stepfunctions")
    machine = load.fleet.stack.outputs["StateMachineArn"]
    for execution in client.list_executions(stateMachineArn=machine, statusFilter="RUNNING")[
        "executions"
    ]:
        if execution["name"].startswith(slot.name):
            client.stop_execution(executionArn=execution["executionArn"])
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _split_widest(load: FleetUnderLoad) -> tuple[str, Sequence[str]]:
    kinesis, stream = load.fleet.aws.client("kinesis"), load.fleet.stream_name
    widest = max(
        (shard for shard in load.fleet.shards() if shard.is_open),
        key=lambda shard: shard.hash_key_range.end - shard.hash_key_range.start,
    )
    middle = (widest.hash_key_range.start + widest.hash_key_range.end) // 2
    kinesis.split_shard(
        StreamName=stream, ShardToSplit=widest.shard_id, NewStartingHashKey=str(middle)
    )
    children = wait_until(
        lambda: [s.shard_id for s in load.fleet.shards() if s.parent_shard_id == widest.shard_id],
        what="the children of a split",
        within_s=60,
    )
    return widest.shard_id, children
