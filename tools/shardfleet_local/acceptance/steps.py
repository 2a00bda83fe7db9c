"""
The steps, in their order: what each does, what is promised of it, and how that is measured.

A step raises when it could not be done; a promise that is not kept is a row that failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from botocore.exceptions import ClientError

from shardfleet_local.acceptance.facts import FACTS
from shardfleet_local.acceptance.plan import price
from shardfleet_local.acceptance.report import (
    Measured,
    ReportPart,
    Shown,
    Step,
    in_time,
    percentile,
)
from shardfleet_local.acceptance.scene import STEP_MS, Scene, StepFailed
from shardfleet_local.rig.feed import SentRecord
from shardfleet_local.rig.incidents import merge_of, open_shards, split_of
from shardfleet_local.rig.probe.s3_probe import HUNG
from shardfleet_local.rig.verdict import RunVerdict
from shardfleet_local.rig.waiting import until

_AFTER_DRAIN = 20
_ONCE = "once"
_REWOUND_PART = 5


async def ask_facts(scene: Scene) -> Measured:
    """Ask AWS how it behaves."""
    answers = [(fact, await asyncio.to_thread(fact.ask, scene)) for fact in FACTS]
    wrong = [
        f"{fact.text}: {answer} instead of {fact.answer}"
        for fact, answer in answers
        if answer != fact.answer
    ]
    told = f"{len(answers) - len(wrong)} of {len(answers)} as expected{': ' * bool(wrong)}"
    figures = {"facts": {fact.text: answer for fact, answer in answers}}
    return _judged(not wrong, told + "; ".join(wrong), **figures)


def _judged(is_kept: bool, text: str, **figures: object) -> Measured:  # noqa: FBT001 - its verdict
    return Measured(Shown.PASSED if is_kept else Shown.FAILED, text, figures)


async def first_records(scene: Scene) -> Measured:
    """Wait for what is sent first."""
    await scene.until(lambda: scene.feeder.sent, what="a record in the stream")
    await scene.clock.sleep_ms(scene.size.pass_ms)
    slowest_ms = await scene.slowest_ms(what="the first records")
    text = f"all that came first was handled; the slowest after {slowest_ms / 1000:.1f} s"
    return _judged(True, text, slowest_ms=slowest_ms)  # noqa: FBT003


async def _disturbed(
    scene: Scene, *, since_ms: int, what: str, why: str, passing_ms: int = 0
) -> Measured:
    """Wait for all that was sent until now, and judge the slowest of it."""
    await scene.clock.sleep_ms(scene.size.pass_ms + passing_ms)
    slowest_ms = await scene.slowest_ms(since_ms=since_ms - scene.size.pass_ms, what=what)
    most_ms = scene.size.recovery_ms
    return Measured(
        in_time(slowest_ms, most_ms=most_ms, embedded=scene.deployment.embedded),
        f"{why}; no record waited longer than {slowest_ms / 1000:.1f} s (promised: "
        f"{most_ms / 1000:.0f} s)",
        {"slowest_ms": slowest_ms, "promised_ms": most_ms},
    )


async def time_out(scene: Scene) -> Measured:
    """Stop a worker's process from within its handler, so that Lambda must end it."""
    scene.feeder.hang(_ONCE)

    def hung() -> Any:
        place = {"Bucket": scene.deployment.bucket, "Key": f"{HUNG}{_ONCE}"}
        with contextlib.suppress(ClientError):
            return scene.client("s3").get_object(**place)

    note = await scene.until(hung, what="a handler that hangs")
    return await _disturbed(
        scene,
        since_ms=json.loads(note["Body"].read())["at_ms"],
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
        why=await replacement(scene, before, stopped=victim),
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

    async def started() -> AbstractSet[str]:
        return await scene.running() - before

    await scene.until(started, what="another execution")
    return f"another execution after {(scene.clock.monotonic_ms() - began_ms) / 1000:.1f} s"


async def split(scene: Scene) -> Measured:
    """Split the first open shard in the middle."""
    shard = open_shards(await scene.shards())[0]
    return await _resharded(scene, "split_shard", **split_of(shard))


async def merge(scene: Scene) -> Measured:
    """Merge the last two open shards."""
    left, right = open_shards(await scene.shards())[-2:]
    return await _resharded(scene, "merge_shards", **merge_of(left, right))


async def _resharded(scene: Scene, operation: str, **request: str) -> Measured:
    before = {each.shard_id for each in await scene.shards()}
    since_ms = scene.clock.now_ms()
    call = getattr(scene.client("kinesis"), operation)
    await asyncio.to_thread(call, StreamARN=scene.output("StreamArn"), **request)

    async def children() -> set[str]:
        return {each.shard_id for each in await scene.shards()} - before

    new = await scene.until(children, what=f"{operation}, a new shard")
    return await _disturbed(scene, since_ms=since_ms, what=operation, why=f"{len(new)} new shards")


async def new_code(scene: Scene) -> Measured:
    """Deploy another version of the handler while records flow."""
    since_ms = scene.clock.now_ms()
    deploy = scene.deployment.deploy
    scene.stack = await asyncio.to_thread(deploy, scene.size, scene.folder, version="2")
    took_s = (scene.clock.now_ms() - since_ms) / 1000

    def at_work() -> int:
        scene.notes.read()
        return scene.notes.versions["2"]

    await scene.until(at_work, what="the new version at work")
    return await _disturbed(
        scene,
        since_ms=since_ms,
        what="while new code was deployed",
        why=f"deployed in {took_s:.0f} s, the new version at work",
    )


async def quiet(scene: Scene) -> Measured:
    """Send nothing for a while, and then go on."""
    turn_ms, quiet_ms = scene.size.config["max_turn_ms"], scene.size.quiet_ms
    scene.feeder.is_quiet = True
    await scene.clock.sleep_ms(quiet_ms)
    scene.feeder.is_quiet = False
    measured = await _disturbed(
        scene,
        since_ms=scene.clock.now_ms(),
        what="after a pause",
        why=f"nothing was sent for {quiet_ms / 1000:.0f} s",
    )
    if quiet_ms <= turn_ms and measured.shown is Shown.PASSED:
        short = f"; shorter than a turn ({turn_ms / 1000:.0f} s), so perhaps nothing was frozen"
        return Measured(Shown.NOT_SHOWN, measured.text + short, measured.figures)
    return measured


async def settle(scene: Scene) -> Measured:
    """Let the feed end, wait for the last record, and judge all of them."""
    scene.feeder.is_quiet = True
    await scene.clock.sleep_ms(scene.size.pass_ms)
    await scene.feeder.top_up(scene.size.records)
    with contextlib.suppress(StepFailed):  # The verdict tells which are missing.
        await scene.slowest_ms(what="the last records")
    first = scene.first_ms()
    waits = [first[r.number] - r.sent_ms for r in scene.feeder.sent if r.number in first]
    return judged(await scene.verdict(), waits)


def judged(verdict: RunVerdict, waits: Sequence[int]) -> Measured:
    """
    Return the row of all records.

    Args:
        verdict: what became of them.
        waits: how long each waited to be handled, milliseconds.

    """
    p50, p99, most = percentile(waits, 0.5), percentile(waits, 0.99), max(waits, default=0)
    return _judged(
        verdict.passed,
        f"{verdict.records_in:,} records: {len(verdict.lost):,} lost, {verdict.foreign:,} foreign, "
        f"{len(verdict.out_of_order):,} out of order, parents before children: "
        f"{'yes' if verdict.parents_before_children else 'NO'}; {verdict.duplicates:,} came again. "
        f"Lag: half within {p50 / 1000:.1f} s, 99 % within {p99 / 1000:.1f} s, all within "
        f"{most / 1000:.1f} s",
        records=verdict.records_in,
        handled=verdict.records_handled_distinct,
        duplicates=verdict.duplicates,
        lost=len(verdict.lost),
        foreign=verdict.foreign,
        out_of_order=len(verdict.out_of_order),
        parents_before_children=verdict.parents_before_children,
        lag_p50_ms=p50,
        lag_p99_ms=p99,
        lag_most_ms=most,
    )


async def rewind(scene: Scene) -> Measured:
    """Set one shard back to one of its records, and count what comes again."""
    shard_id = open_shards(await scene.shards())[0].shard_id
    place, after = rewound_to([r for r in scene.feeder.sent if r.receipt.shard_id == shard_id])
    before = await scene.noted()
    answer = await scene.shardfleet("rewind", shard_id, "--to", place, "--yes")
    counted = sum(row["records"] for row in answer["leases"])

    async def have_come() -> bool:
        return bool(await scene.noted() - before >= counted)

    await until(have_come, clock=scene.clock, within_ms=STEP_MS)
    await scene.clock.sleep_ms(scene.size.pass_ms)
    came = await scene.noted() - before
    return _judged(
        came == counted == after,
        f"{after:,} records were sent after that one, {counted:,} counted beforehand, {came:,} "
        "came again",
        sent=after,
        counted=counted,
        came=came,
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


async def drain(scene: Scene) -> Measured:
    """Drain the fleet, send records that nobody must handle, and resume."""
    duplicates = (await scene.verdict()).duplicates
    await scene.shardfleet("drain", "--yes", "--reason", "acceptance")
    left = len(await scene.running())
    before = await scene.noted()
    await scene.feeder.top_up(len(scene.feeder.sent) + _AFTER_DRAIN)
    await scene.clock.sleep_ms(scene.size.pass_ms)
    handled = await scene.noted() - before
    await scene.shardfleet("resume", "--all", "--yes")
    await scene.slowest_ms(what="after the drain")
    verdict = await scene.verdict()
    again = verdict.duplicates - duplicates
    return _judged(
        verdict.passed and not (left or handled or again),
        f"{left} executions and {handled} records while drained; resumed, {len(verdict.lost)} "
        f"lost, {again} came again",
        executions=left,
        records=handled,
        lost=len(verdict.lost),
        again=again,
    )


async def cost(scene: Scene) -> Measured:
    """Read the fleet's ledger."""
    answer = await scene.shardfleet("cost", "--days", "2")
    used: Counter[str] = Counter()
    for day in answer["days"]:
        used.update(day["used"])
    dollars, most = sum(day["total"] for day in answer["days"]), price(scene.size).total
    return _judged(
        0 < dollars <= most,
        f"${dollars:.4f} by the fleet's ledger, of at most ${most:.2f}; {used['requests']:,} "
        f"invocations, {used['transitions']:,} states entered",
        dollars=dollars,
        most_dollars=most,
        used=dict(used),
    )


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

DEPLOY = ReportPart(
    "deploy",
    "makes a bucket, and of the repository's template a stack",
    "the stack that `make synth` writes deploys as it is",
    "docs/guarantees.md",
)
DESTROY = ReportPart(
    "destroy",
    "deletes the stack and the bucket, whatever happened",
    "a throw-away stack goes as a whole",
    "docs/day-two.md",
)
LEFT_BEHIND = ReportPart(
    "left behind", "lists what each service still has of this run", "nothing", "docs/cli.md"
)
