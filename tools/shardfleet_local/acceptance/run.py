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
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from shardfleet.adapters.system import SystemClock
from shardfleet.errors import ShardfleetError
from shardfleet_local.acceptance.deployment import Deployment, left_behind
from shardfleet_local.acceptance.plan import DESTROY_MS, MINUTES_MOST, AcceptanceSize
from shardfleet_local.acceptance.report import Measured, ReportPart, Shown, Step, StepRow
from shardfleet_local.acceptance.scene import Scene, StepFailed
from shardfleet_local.acceptance.steps import DEPLOY, DESTROY, LEFT_BEHIND, STEPS
from shardfleet_local.rig.feed import Feeder
from shardfleet_local.rig.ledger import BatchNotes

GONE_MS = 60_000
"""How long a service may go on listing what is deleted."""

_LOOK_EVERY_S = 5.0
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
    say: Callable[[str], None] = lambda _: None
    steps: Sequence[Step] = STEPS
    rows: list[StepRow] = field(default_factory=list)
    scene: Scene | None = None
    _clock: SystemClock = field(default_factory=SystemClock)
    _began_ms: int = 0
    _made: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """
        Do all of it.

        Raises:
            KeyboardInterrupt: somebody ended it; all is destroyed by then.

        """
        self._began_ms = self._clock.monotonic_ms()
        with tempfile.TemporaryDirectory(prefix="shardfleet-acceptance-") as folder:
            try:
                self._deploy(Path(folder))
                if self.scene:
                    asyncio.run(self._all(self.scene))
                else:
                    self._pass_over("there is no fleet")
            except BaseException as error:
                for cut in self._left()[:1]:
                    why = f"ended by {type(error).__name__} {error}".strip()
                    self._add(cut, Measured(Shown.FAILED, why), self._clock.monotonic_ms())
                self._pass_over("the run was ended before")
                raise
            finally:
                self._end()

    def _deploy(self, folder: Path) -> None:
        """Make the bucket and the stack, and of it the scene."""
        deployment, size = self.deployment, self.size
        with self._measuring(DEPLOY) as measured:
            deployment.make_bucket()
            stack = deployment.deploy(size, folder, version="1")
            self._made |= deployment.resources()
            measured.append(Measured(Shown.PASSED, f"{len(self._made)} resources"))
            self.scene = Scene(
                deployment=deployment,
                size=size,
                stack=stack,
                folder=folder,
                feeder=Feeder(
                    deployment.account,
                    stack.outputs["StreamArn"],
                    per_s=-(-size.records * 1000 // size.feed_ms),
                ),
                notes=BatchNotes(deployment.account.client("s3"), deployment.bucket),
                clock=self._clock,
            )

    async def _all(self, scene: Scene) -> None:
        """Do the steps, fed all the time, until one cannot be done."""
        spent_ms = self._clock.monotonic_ms() - self._began_ms
        left_s = (MINUTES_MOST * 60_000 - DESTROY_MS - spent_ms) / 1000
        feeding: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                for step in self.steps:
                    if feeding is None and step.is_fed:
                        feeding = asyncio.create_task(scene.feeder.run())
                    with self._measuring(step) as measured:
                        if feeding is not None and feeding.done():
                            feeding.result()
                            raise StepFailed("the feed has ended")
                        measured.append(await step.run(scene))
                    if not self.rows[-1].measured.is_done:
                        self._pass_over("a step before could not be done")
                        break
        except TimeoutError:
            self._pass_over(f"the {MINUTES_MOST} minutes were over")
        finally:
            if feeding is not None:
                feeding.cancel()
                with contextlib.suppress(asyncio.CancelledError, *_NOT_DONE):
                    await feeding

    def _end(self) -> None:
        """Destroy everything, and look for what stayed."""
        self._made |= self.deployment.resources()
        with self._measuring(DESTROY) as measured:
            self.deployment.destroy(self.say)
            measured.append(Measured(Shown.PASSED, "stack and bucket are gone"))
        with self._measuring(LEFT_BEHIND) as measured:
            measured.append(self._look_for_what_stayed())

    def _look_for_what_stayed(self) -> Measured:
        account, name = self.deployment.account, self.deployment.name
        deadline_ms = self._clock.monotonic_ms() + GONE_MS * (not self.deployment.embedded)
        while (left := left_behind(account, name, self._made)) and (
            self._clock.monotonic_ms() < deadline_ms
        ):
            time.sleep(_LOOK_EVERY_S)
        if left:
            told = f"{len(left)} things: {'; '.join(left)}. shardfleet acceptance --destroy {name}"
            return Measured(Shown.FAILED, told, {"left": left})
        return Measured(Shown.PASSED, "nothing", {"left": []})

    @contextlib.contextmanager
    def _measuring(self, step: ReportPart) -> Iterator[list[Measured]]:
        """Add the row of a step from what was measured in the block, or from its error."""
        self.say(f"{step.name}: {step.does}")
        began_ms = self._clock.monotonic_ms()
        measured: list[Measured] = []
        try:
            yield measured
        except _NOT_DONE as error:
            measured[:] = [Measured(Shown.FAILED, str(error), is_done=False)]
        self._add(step, measured[0], began_ms)

    def _left(self) -> list[Step]:
        done = {row.step.name for row in self.rows}
        return [step for step in self.steps if step.name not in done]

    def _pass_over(self, why: str) -> None:
        """Note of all steps that were not done that they are not shown."""
        for step in self._left():
            self._add(step, Measured(Shown.NOT_SHOWN, why), self._clock.monotonic_ms())

    def _add(self, step: ReportPart, measured: Measured, began_ms: int) -> None:
        took_ms = self._clock.monotonic_ms() - began_ms
        self.rows.append(StepRow(step, measured, took_ms))
        self.say(f"  {step.name} {measured.shown}: {measured.text} ({took_ms / 1000:.1f} s)")


def destroyed(deployment: Deployment, say: Callable[[str], None]) -> list[str]:
    """
    Destroy what a run has left, and return what is still there.

    Raises:
        NotDestroyed: it is not the run's, or it cannot be removed.

    """
    made = deployment.resources()
    deployment.destroy(say)
    return left_behind(deployment.account, deployment.name, made)
