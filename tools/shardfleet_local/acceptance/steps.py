"""
The steps, in their order: what each does, what is promised of it, and how that is measured.

A step raises when it could not be done; a promise that is not kept is a row that failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from shardfleet.domain.stream.shards import Shard
from shardfleet_local.acceptance.facts import FactPlaces, ask_all
from shardfleet_local.acceptance.measured import (
    Measured,
    Shown,
    in_time,
    percentile,
    waited_ms,
)
from shardfleet_local.acceptance.plan import price
from shardfleet_local.acceptance.scene import Scene, StepFailed
from shardfleet_local.rig.feed import SentRecord
from shardfleet_local.rig.probe.s3_probe import HUNG
from shardfleet_local.rig.verdict import RunVerdict

_STEP_MS = 180_000
_LOOK_EVERY_MS = 500
_AFTER_DRAIN = 20
_ONCE = "once"
_REWOUND_PART = 5


@dataclass(frozen=True, slots=True)
class Step:
    """
    A step.

    Attributes:
        name: for the report.
        does: what is done.
        promise: what should come of it.
        page: where that is promised.
        run: does and measures it.
        is_fed: whether records come meanwhile.

    """

    name: str
    does: str
    promise: str
    page: str
    run: Callable[[Scene], Awaitable[Measured]]
    is_fed: bool = True


async def ask_facts(scene: Scene) -> Measured:
    """Ask AWS how it behaves."""
    places = FactPlaces(
        account=scene.deployment.account,
        stream=scene.output("StreamArn"),
        state_table=scene.output("StateTable"),
        machine=scene.output("StateMachineArn"),
        bucket=scene.deployment.bucket,
    )
    found = await asyncio.to_thread(ask_all, places)
    wrong = [each for each in found if each.answered != each.expected]
    told = "; ".join(f"{w.text}: {w.answered} instead of {w.expected}" for w in wrong)
    return Measured(
        Shown.FAILED if wrong else Shown.PASSED,
        f"{len(found) - len(wrong)} of {len(found)} as expected{': ' * bool(wrong)}{told}",
        {"facts": {each.text: each.answered for each in found}},
    )


async def first_records(scene: Scene) -> Measured:
    """Wait for what is sent first."""
    began_ms = scene.clock.now_ms()
    await _until(scene, lambda: scene.sent, what="a record in the stream")
    await scene.clock.sleep_ms(scene.size.pass_ms)
    now_ms = scene.clock.now_ms()
    first = await scene.handled(sent_by_ms=now_ms, within_ms=_STEP_MS, what="the first records")
    slowest = waited_ms(scene.sent, first, from_ms=began_ms, until_ms=now_ms) or 0
    return Measured(
        Shown.PASSED,
        f"all that came first was handled; the slowest after {slowest / 1000:.1f} s",
        {"slowest_ms": slowest},
    )


async def _disturbed(
    scene: Scene, *, since_ms: int, what: str, why: str, passing_ms: int = 0
) -> Measured:
    """Wait for all that was sent until now, and judge the slowest of it."""
    await scene.clock.sleep_ms(scene.size.pass_ms + passing_ms)
    now_ms = scene.clock.now_ms()
    first = await scene.handled(sent_by_ms=now_ms, within_ms=_STEP_MS, what=what)
    slowest = (
        waited_ms(scene.sent, first, from_ms=since_ms - scene.size.pass_ms, until_ms=now_ms) or 0
    )
    most = scene.size.recovery_ms
    return Measured(
        in_time(slowest, most_ms=most, embedded=scene.deployment.embedded),
        f"{why}; no record waited longer than {slowest / 1000:.1f} s (promised: "
        f"{most / 1000:.0f} s)",
        {"slowest_ms": slowest, "promised_ms": most},
    )


async def time_out(scene: Scene) -> Measured:
    """Stop a worker's process from within its handler, so that Lambda must end it."""
    scene.feeder.hang(_ONCE)
    client, key = scene.client("s3"), f"{HUNG}{_ONCE}"

    def hung() -> Any:
        try:
            return client.get_object(Bucket=scene.deployment.bucket, Key=key)
        except ClientError:
            return None

    found = await _until(scene, hung, what="a handler that hangs")
    since_ms = json.loads(found["Body"].read())["at_ms"]
    return await _disturbed(
        scene,
        since_ms=since_ms,
        what="after a handler that never returned",
        why="the worker's process stood still in its handler",
    )


async def stop_execution(scene: Scene) -> Measured:
    """Stop one worker slot's execution, and wait until there are as many as are wanted again."""
    before = await scene.running()
    if not before:
        raise StepFailed("no execution is running, so none can be stopped")
    victim = min(before)
    since_ms = scene.clock.now_ms()
    client = scene.client("stepfunctions")
    await asyncio.to_thread(client.stop_execution, executionArn=victim)
    return await _disturbed(
        scene,
        since_ms=since_ms,
        what="after an execution was stopped",
        why=await replacement(scene, set(before), stopped=victim),
        # The stopped one's invocation went on; its leases expire after that.
        passing_ms=scene.size.failover_ms,
    )


async def replacement(scene: Scene, before: AbstractSet[str], *, stopped: str) -> str:
    """
    Wait until an execution has taken a stopped one's place, and say so.

    Where a worker stood still just before, its stand-in runs (docs/protocol.md Z8), and with it as
    many others as the fleet wants: then there is nothing to start.

    Args:
        scene: of the run.
        before: executions that ran until then.
        stopped: the one of them that was stopped.

    Raises:
        StepFailed: there was none in time.

    """
    others, wanted = len(before - {stopped}), scene.size.config["min_workers"]
    if others >= wanted:
        return f"{others} others ran on, and {wanted} are wanted"
    began_ms = scene.clock.monotonic_ms()
    while not set(await scene.running()) - before:
        if scene.clock.monotonic_ms() > began_ms + _STEP_MS:
            raise StepFailed(f"no execution was started within {_STEP_MS // 1000} s")
        await scene.clock.sleep_ms(_LOOK_EVERY_MS)
    return f"another execution after {(scene.clock.monotonic_ms() - began_ms) / 1000:.1f} s"


async def split(scene: Scene) -> Measured:
    """Split the first open shard in the middle."""
    shard = (await scene.open_shards())[0]
    bounds = shard.hash_key_range
    return await _resharded(
        scene,
        "split_shard",
        ShardToSplit=shard.shard_id,
        NewStartingHashKey=str((bounds.start + bounds.end + 1) // 2),
    )


async def merge(scene: Scene) -> Measured:
    """Merge the last two open shards."""
    left, right = (await scene.open_shards())[-2:]
    return await _resharded(
        scene,
        "merge_shards",
        ShardToMerge=left.shard_id,
        AdjacentShardToMerge=right.shard_id,
    )


async def _resharded(scene: Scene, operation: str, **asked: str) -> Measured:
    before = {each.shard_id for each in await scene.shards()}
    since_ms = scene.clock.now_ms()
    call = getattr(scene.client("kinesis"), operation)
    await asyncio.to_thread(call, StreamARN=scene.output("StreamArn"), **asked)
    children: list[Shard] = []
    deadline_ms = scene.clock.monotonic_ms() + _STEP_MS
    while not children:
        if scene.clock.monotonic_ms() > deadline_ms:
            raise StepFailed(f"{operation}: no new shard within {_STEP_MS // 1000} s")
        await scene.clock.sleep_ms(_LOOK_EVERY_MS)
        children = [each for each in await scene.shards() if each.shard_id not in before]
    return await _disturbed(
        scene, since_ms=since_ms, what=operation, why=f"{len(children)} new shards"
    )


async def new_code(scene: Scene) -> Measured:
    """Deploy another version of the handler while records flow."""
    since_ms = scene.clock.now_ms()
    deployed = await asyncio.to_thread(
        scene.deployment.deploy, scene.size, scene.folder, version="2"
    )
    scene.stack = deployed
    took_s = (scene.clock.now_ms() - since_ms) / 1000

    def at_work() -> bool:
        scene.notes.read()
        return scene.notes.of_version("2") > 0

    await _until(scene, at_work, what="the new version at work")
    return await _disturbed(
        scene,
        since_ms=since_ms,
        what="while new code was deployed",
        why=f"deployed in {took_s:.0f} s, the new version at work",
    )


async def quiet(scene: Scene) -> Measured:
    """Send nothing for a while, and then go on."""
    config = scene.size.config
    frozen_ms = config["max_turn_ms"]
    scene.feeder.is_quiet = True
    await scene.clock.sleep_ms(scene.size.quiet_ms)
    scene.feeder.is_quiet = False
    since_ms = scene.clock.now_ms()
    found = await _disturbed(
        scene,
        since_ms=since_ms,
        what="after a pause",
        why=f"nothing was sent for {scene.size.quiet_ms / 1000:.0f} s",
    )
    if scene.size.quiet_ms <= frozen_ms and found.shown is Shown.PASSED:
        short = f"; shorter than a turn ({frozen_ms / 1000:.0f} s), so perhaps nothing was frozen"
        return Measured(Shown.NOT_SHOWN, found.text + short, found.figures)
    return found


async def settle(scene: Scene) -> Measured:
    """Let the feed end, wait for the last record, and judge all of them."""
    scene.feeder.is_quiet = True
    await scene.clock.sleep_ms(scene.size.pass_ms)
    if len(scene.sent) < scene.size.records:
        await scene.feeder.top_up(scene.size.records)
    now_ms = scene.clock.now_ms()
    with contextlib.suppress(StepFailed):  # The verdict tells which are missing.
        await scene.handled(sent_by_ms=now_ms, within_ms=_STEP_MS, what="the last records")
    return judged(await scene.verdict(), _waits(scene))


def judged(found: RunVerdict, waits: list[int]) -> Measured:
    """
    Return the row of all records.

    Args:
        found: what became of them.
        waits: how long each waited to be handled, milliseconds.

    """
    p50, p99, most = percentile(waits, 0.5), percentile(waits, 0.99), max(waits, default=0)
    figures = {
        "records": found.records_in,
        "handled": found.records_handled_distinct,
        "duplicates": found.duplicates,
        "lost": len(found.lost),
        "foreign": found.foreign,
        "out_of_order": len(found.out_of_order),
        "parents_before_children": found.parents_before_children,
        "lag_p50_ms": p50,
        "lag_p99_ms": p99,
        "lag_most_ms": most,
    }
    text = (
        f"{found.records_in:,} records: {len(found.lost):,} lost, {found.foreign:,} foreign, "
        f"{len(found.out_of_order):,} out of order, parents before children: "
        f"{'yes' if found.parents_before_children else 'NO'}; {found.duplicates:,} came again. "
        f"Lag: half within {p50 / 1000:.1f} s, 99 % within {p99 / 1000:.1f} s, all within "
        f"{most / 1000:.1f} s"
    )
    return Measured(Shown.PASSED if found.passed else Shown.FAILED, text, figures)


def _waits(scene: Scene) -> list[int]:
    first = scene.first_ms()
    return [first[r.number] - r.sent_ms for r in scene.sent if r.number in first]


async def rewind(scene: Scene) -> Measured:
    """Set one shard back to one of its records, and count what comes again."""
    shard_id = (await scene.open_shards())[0].shard_id
    place, after = rewound_to([r for r in scene.sent if r.receipt.shard_id == shard_id])
    before = await _noted(scene)
    answer = await scene.shardfleet("rewind", shard_id, "--to", place, "--yes")
    counted = sum(row["records"] for row in answer["leases"])
    deadline_ms = scene.clock.monotonic_ms() + _STEP_MS
    while (came := await _noted(scene) - before) < counted:
        if scene.clock.monotonic_ms() > deadline_ms:
            break
        await scene.clock.sleep_ms(_LOOK_EVERY_MS)
    await scene.clock.sleep_ms(scene.size.pass_ms)
    came = await _noted(scene) - before
    return Measured(
        Shown.PASSED if came == counted == after else Shown.FAILED,
        f"{after:,} records were sent after that one, {counted:,} counted beforehand, {came:,} "
        "came again",
        {"sent": after, "counted": counted, "came": came},
    )


def rewound_to(sent: Sequence[SentRecord]) -> tuple[str, int]:
    """
    Return a place before the last fifth of a shard's records, and how many come after it.

    Raises:
        StepFailed: there are too few.

    """
    places = sorted((int(r.receipt.sequence_number), r.receipt.sub_sequence_number) for r in sent)
    after = len(places) // _REWOUND_PART
    if not after:
        raise StepFailed(f"the shard got {len(places)} records, too few to set it back")
    number, sub_number = places[-1 - after]
    return f"{number}:{sub_number}", after


async def _noted(scene: Scene) -> int:
    """Return how many records were noted as handled so far, those that came again included."""
    await asyncio.to_thread(scene.notes.read)
    return sum(len(line.records) for line in scene.notes.lines)


async def drain(scene: Scene) -> Measured:
    """Drain the fleet, send records that nobody must handle, and resume."""
    duplicates = (await scene.verdict()).duplicates
    await scene.shardfleet("drain", "--yes", "--reason", "acceptance")
    left = len(await scene.running())
    before = await _noted(scene)
    await scene.feeder.top_up(len(scene.sent) + _AFTER_DRAIN)
    await scene.clock.sleep_ms(scene.size.pass_ms)
    handled = await _noted(scene) - before
    await scene.shardfleet("resume", "--all", "--yes")
    now_ms = scene.clock.now_ms()
    await scene.handled(sent_by_ms=now_ms, within_ms=_STEP_MS, what="after the drain")
    found = await scene.verdict()
    again = found.duplicates - duplicates
    kept = found.passed and not left and not handled and not again
    return Measured(
        Shown.PASSED if kept else Shown.FAILED,
        f"{left} executions and {handled} records while drained; resumed, {len(found.lost)} lost, "
        f"{again} came again",
        {"executions": left, "records": handled, "lost": len(found.lost), "again": again},
    )


async def cost(scene: Scene) -> Measured:
    """Read the fleet's ledger."""
    answer = await scene.shardfleet("cost", "--days", "2")
    used: dict[str, int] = {}
    for day in answer["days"]:
        for name, count in day["used"].items():
            used[name] = used.get(name, 0) + count
    dollars = sum(day["total"] for day in answer["days"])
    most = price(scene.size).total
    figures: Mapping[str, object] = {"dollars": dollars, "most_dollars": most, "used": used}
    told = (
        f"${dollars:.4f} by the fleet's ledger, of at most ${most:.2f}; "
        f"{used.get('requests', 0):,} invocations, {used.get('transitions', 0):,} states entered"
    )
    return Measured(Shown.PASSED if 0 < dollars <= most else Shown.FAILED, told, figures)


async def _until(scene: Scene, look: Callable[[], Any], *, what: str) -> Any:
    deadline_ms = scene.clock.monotonic_ms() + _STEP_MS
    while not (found := await asyncio.to_thread(look)):
        if scene.clock.monotonic_ms() > deadline_ms:
            raise StepFailed(f"{what}: not within {_STEP_MS // 1000} s")
        await scene.clock.sleep_ms(_LOOK_EVERY_MS)
    return found


STEPS = (
    Step(
        "facts",
        "asks the services how they behave",
        "AWS behaves as the fleet relies on",
        "docs/protocol.md",
        ask_facts,
        is_fed=False,
    ),
    Step(
        "first records",
        "begins the feed, which goes on through all that follows",
        "a deployed fleet reads by itself",
        "README.md",
        first_records,
    ),
    Step(
        "time-out",
        "a handler hangs until Lambda's time-out ends the invocation",
        "a lost worker's shards go on within two failover times and a start",
        "docs/architecture.md",
        time_out,
    ),
    Step(
        "stopped execution",
        "StopExecution of a worker slot",
        "the manager starts another; its shards go on within two failover times and a start",
        "docs/architecture.md",
        stop_execution,
    ),
    Step(
        "split",
        "SplitShard",
        "children after their parent, within two failover times and a start",
        "docs/guarantees.md",
        split,
    ),
    Step(
        "merge",
        "MergeShards",
        "a child after both parents, within two failover times and a start",
        "docs/guarantees.md",
        merge,
    ),
    Step(
        "new code",
        "deploys another version of the handler",
        "nothing has to be stopped",
        "docs/day-two.md",
        new_code,
    ),
    Step(
        "quiet",
        "sends nothing for a while, so that environments are frozen, and goes on",
        "what was frozen goes on",
        "docs/guarantees.md",
        quiet,
    ),
    Step(
        "records",
        "ends the feed and compares what was sent with what was handled",
        "nothing lost, each key in order, parents before children",
        "docs/guarantees.md",
        settle,
    ),
    Step(
        "rewind",
        "`shardfleet rewind` of one shard",
        "exactly what is counted beforehand comes again",
        "docs/guarantees.md",
        rewind,
    ),
    Step(
        "drain",
        "`shardfleet drain`, records meanwhile, `shardfleet resume`",
        "nobody reads; then nothing is lost and nothing comes twice",
        "docs/guarantees.md",
        drain,
    ),
    Step(
        "cost",
        "`shardfleet cost`: the fleet's own ledger",
        "no more than was announced",
        "docs/cost.md",
        cost,
    ),
)
"""In their order; before them the stack is deployed, after them all is destroyed."""
