"""
One step after the other; whatever happens, all is destroyed, and it is looked for what stayed.

A promise that is not kept is a row, and the next step follows. A step that cannot be done ends the
steps; Ctrl-C does, too. The stack is deployed outside of the event loop, so that Ctrl-C cuts it off
at once instead of waiting for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from shardfleet.adapters.system import SystemClock
from shardfleet.errors import ShardfleetError
from shardfleet_local.acceptance.deployment import Deployment
from shardfleet_local.acceptance.left_behind import left_behind, tagged
from shardfleet_local.acceptance.measured import Measured, Say, Shown, StepRow
from shardfleet_local.acceptance.notes import BatchNotes
from shardfleet_local.acceptance.plan import DESTROY_MS, MINUTES_MOST, AcceptanceSize
from shardfleet_local.acceptance.scene import Scene, StepFailed
from shardfleet_local.acceptance.steps import STEPS, Step
from shardfleet_local.aws.deploy import StackOutputs
from shardfleet_local.rig.feed import Feeder

GONE_MS = 60_000
"""How long a service may go on listing what is deleted."""

_LOOK_EVERY_MS = 5_000
_NOT_DONE = (ShardfleetError, ClientError, BotoCoreError, OSError, TimeoutError)


@dataclass(slots=True)
class Acceptance:
    """
    A run.

    Attributes:
        deployment: what bears its name.
        size: how much is done.
        say: told of each step.
        steps: what is done between deploying and destroying.
        rows: of the report, so far.
        scene: once deployed; tests look at it.

    """

    deployment: Deployment
    size: AcceptanceSize
    say: Say = lambda _: None
    steps: Sequence[Step] = STEPS
    rows: list[StepRow] = field(default_factory=list)
    scene: Scene | None = None
    _clock: SystemClock = field(default_factory=SystemClock)
    _began_ms: int = 0
    _made: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Tell whether no promise was broken, and nothing is left."""
        return all(row.measured.shown is not Shown.FAILED for row in self.rows)

    def run(self) -> None:
        """
        Do all of it.

        Raises:
            KeyboardInterrupt: somebody ended it; all is destroyed by then.

        """
        self._began_ms = self._clock.monotonic_ms()
        with tempfile.TemporaryDirectory(prefix="shardfleet-acceptance-") as folder:
            try:
                stack = self._deploy(Path(folder))
                if stack is None:
                    self._pass_over(self.steps, "there is no fleet")
                else:
                    self.scene = self._scene(stack, Path(folder))
                    asyncio.run(self._all(self.scene))
            except BaseException as error:
                self._cut_off(error)
                raise
            finally:
                self._end()

    def _deploy(self, folder: Path) -> StackOutputs | None:
        """Make the bucket and the stack; None: they could not be made."""
        made: list[StackOutputs] = []

        def make() -> Measured:
            self.deployment.make_bucket()
            made.append(self.deployment.deploy(self.size, folder, version="1"))
            self._made |= self.deployment.resources()
            return Measured(Shown.PASSED, f"{len(self._made)} resources")

        self._row(
            "deploy",
            make,
            does="makes a bucket, and of the repository's template a stack",
            promise="the stack that `make synth` writes deploys as it is",
            page="docs/guarantees.md",
        )
        return made[0] if made else None

    def _scene(self, stack: StackOutputs, folder: Path) -> Scene:
        account = self.deployment.account
        return Scene(
            deployment=self.deployment,
            size=self.size,
            stack=stack,
            folder=folder,
            feeder=Feeder(
                account,
                stack.outputs["StreamArn"],
                per_s=-(-self.size.records * 1000 // self.size.feed_ms),
            ),
            notes=BatchNotes(account.client("s3"), self.deployment.bucket),
            clock=self._clock,
        )

    async def _all(self, scene: Scene) -> None:
        """Do the steps, fed all the time, until one cannot be done."""
        spent_ms = self._clock.monotonic_ms() - self._began_ms
        left_s = (MINUTES_MOST * 60_000 - DESTROY_MS - spent_ms) / 1000
        feeding: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                for place, step in enumerate(self.steps):
                    if feeding is None and step.is_fed:
                        feeding = asyncio.create_task(scene.feeder.run())
                    if not await self._step(step, scene, feeding):
                        self._pass_over(self.steps[place + 1 :], "a step before could not be done")
                        break
        except TimeoutError:
            done = {row.name for row in self.rows}
            left = [step for step in self.steps if step.name not in done]
            self._pass_over(left, f"the {MINUTES_MOST} minutes were over")
        finally:
            scene.feeder.end()
            if feeding is not None:
                feeding.cancel()
                with contextlib.suppress(asyncio.CancelledError, *_NOT_DONE):
                    await feeding

    async def _step(self, step: Step, scene: Scene, feeding: asyncio.Task[None] | None) -> bool:
        """Do one step; tell whether it could be done."""
        self.say(f"{step.name}: {step.does}")
        began_ms = self._clock.monotonic_ms()
        could_be = True
        try:
            if feeding is not None and feeding.done():
                feeding.result()
                raise StepFailed("the feed has ended")
            measured = await step.run(scene)
        except _NOT_DONE as error:
            if isinstance(error, TimeoutError) and not str(error):
                raise
            could_be, measured = False, Measured(Shown.FAILED, str(error))
        self._add(step, measured, began_ms)
        return could_be

    def _end(self) -> None:
        """Destroy everything, and look for what stayed."""
        self._made |= self.deployment.resources()
        self._row(
            "destroy",
            self._destroy,
            does="deletes the stack and the bucket",
            promise="a throw-away stack goes as a whole",
            page="docs/day-two.md",
        )
        self._row(
            "left behind",
            self._left,
            does="lists what each service still has of this run",
            promise="nothing",
            page="docs/cli.md",
        )

    def _destroy(self) -> Measured:
        self.deployment.destroy(self.say)
        return Measured(Shown.PASSED, "stack and bucket are gone")

    def _left(self) -> Measured:
        account, name = self.deployment.account, self.deployment.name
        deadline_ms = self._clock.monotonic_ms() + GONE_MS * (not self.deployment.embedded)
        while (found := left_behind(account, name, self._made)) and (
            self._clock.monotonic_ms() < deadline_ms
        ):
            asyncio.run(self._clock.sleep_ms(_LOOK_EVERY_MS))
        if found:
            told = (
                f"{len(found)} things: {'; '.join(found)}. shardfleet acceptance --destroy {name}"
            )
            return Measured(Shown.FAILED, told, {"left": found})
        try:
            indexed = len(tagged(account, name))
        except ClientError as error:
            also = f"; the index of tags could not be asked: {error}"
        else:
            also = f"; the index of tags, which lags, still has {indexed}" if indexed else ""
        return Measured(Shown.PASSED, f"nothing{also}", {"left": []})

    def _row(
        self, name: str, measure: Callable[[], Measured], *, does: str, promise: str, page: str
    ) -> None:
        """Do something outside of the event loop, and add its row."""
        self.say(f"{name}: {does}")
        began_ms = self._clock.monotonic_ms()
        try:
            measured = measure()
        except _NOT_DONE as error:
            measured = Measured(Shown.FAILED, str(error))
        self._add(Step(name, does, promise, page, _never), measured, began_ms)

    def _cut_off(self, error: BaseException) -> None:
        """Note in which step the run was ended, and that the others are not shown."""
        done = {row.name for row in self.rows}
        left = [each for each in self.steps if each.name not in done]
        why = f"ended by {type(error).__name__} {error}".strip()
        for cut in left[:1]:
            self._add(cut, Measured(Shown.FAILED, why), self._clock.monotonic_ms())
        self._pass_over(left[1:], "the run was ended before")

    def _pass_over(self, steps: Iterable[Step], why: str) -> None:
        now_ms = self._clock.monotonic_ms()
        for step in steps:
            self._add(step, Measured(Shown.NOT_SHOWN, why), now_ms)

    def _add(self, step: Step, measured: Measured, began_ms: int) -> None:
        took_ms = self._clock.monotonic_ms() - began_ms
        self.rows.append(
            StepRow(
                name=step.name,
                does=step.does,
                promise=step.promise,
                page=step.page,
                measured=measured,
                took_ms=took_ms,
            )
        )
        self.say(f"  {step.name} {measured.shown}: {measured.text} ({took_ms / 1000:.1f} s)")


async def _never(_: Scene) -> Measured:
    raise AssertionError


def destroyed(deployment: Deployment, say: Say) -> list[str]:
    """
    Destroy what a run has left, and return what is still there.

    Raises:
        NotDestroyed: it is not the run's, or it cannot be removed.

    """
    made = deployment.resources()
    deployment.destroy(say)
    return left_behind(deployment.account, deployment.name, made)
