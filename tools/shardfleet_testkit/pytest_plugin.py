"""
The pytest plugin: your own handler in a simulated fleet, with faults at every port.

Two fixtures. ``fleet.run(handler, records)`` plays a fleet that runs the handler on the records
while workers die and freeze, calls fail, shards split and merge; ``sink`` is the outside world that
the handler writes to. A run fails if a record is lost or out of order, or if the sink does not end
up as it does without faults. What failed is told with its seed, the faults that it takes, and the
command that repeats it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from shardfleet.engine.shard.failure_policy import FailurePolicy
    from shardfleet_testkit.simulation import Options, RunResult
    from shardfleet_testkit.simulation.sink import Sink

# Looking for the faults that a failure takes may cost so much real time.
_SHRINK_S = 30.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that repeat a failing run."""
    group = parser.getgroup("shardfleet", "simulated fleets (shardfleet)")
    group.addoption(
        "--fleet-seed", type=int, metavar="N", help="run simulated fleets with this seed alone"
    )
    group.addoption(
        "--fleet-only",
        metavar="KIND,KIND",
        help="run simulated fleets with these kinds of faults alone",
    )
    group.addoption(
        "--fleet-log", type=Path, metavar="FILE", help="write the event log of the last fleet there"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRun:
    """
    What one simulated fleet went through.

    Attributes:
        seed: of the run.
        records: put.
        repetitions: records that the handler was done with more than once.
        virtual_ms: how long the fleet lived.
        faults: by kind.
        reshards: splits and merges.
        ended_hard: invocations killed, cut off, or that ended their process.

    """

    seed: int
    records: int
    repetitions: int
    virtual_ms: int
    faults: dict[str, int]
    reshards: int
    ended_hard: int


class Fleet:
    """
    Runs handlers in simulated fleets.

    Attributes:
        sink: the outside world, the same as the fixture ``sink``.

    """

    def __init__(self, config: pytest.Config, sink: Sink, *, test: str) -> None:
        """Take the options of the command line; ``test`` names the test in messages."""
        self.sink = sink
        self._config = config
        self._test = test

    def run(
        self,
        handler: Callable[..., Any] | str,
        records: Iterable[Any] | str | Path,
        *,
        key: str | None = None,
        hours: float = 0.25,
        seed: int = 1,
        seeds: int = 1,
        **details: Any,
    ) -> list[FleetRun]:
        """
        Run a handler on records in one fleet per seed; fail the test if something is wrong.

        Args:
            handler: ``handle(batch)`` or ``handler(event, context)``, synchronous or ``async``; or
                its name ``package.module:function``, which each invocation imports anew.
            records: pairs of partition key and data (bytes, text, or what JSON can say), or the
                path of a file of JSON lines.
            key: for a file, or for objects instead of pairs: the field with the partition key.
            hours: how long records flow and faults happen, virtual hours.
            seed: everything is drawn from it.
            seeds: so many runs, with this seed and those after it.
            details: ``effects``: ``"exact"`` (the sink must end up as without faults) or ``"any"``;
                ``check``: asserts, of the sink, after each run; ``shards``: at the beginning;
                ``contract``: ``native`` or ``event`` where the parameters do not tell; ``policy``:
                of records that failed five times. A reply means what it means in a worker.

        Returns:
            What each fleet went through.

        """
        from shardfleet_testkit.simulation.play import Play, records_of  # noqa: PLC0415  # As above.

        wanted = _Details(**details)
        play = Play(
            handler=handler,
            records=records_of(records, key=key),
            hours=hours,
            sink=self.sink,
            contract=wanted.contract,
            shards=wanted.shards,
            check=wanted.check,
            policy=wanted.policy,
        )
        only = self._config.getoption("--fleet-seed")
        numbers = range(seed, seed + seeds) if only is None else [only]
        if wanted.effects == "exact":
            play = replace(play, expected=self._without_faults(play, numbers[0]))
        return [self._one(play, number) for number in numbers]

    def _without_faults(self, play: Any, seed: int) -> dict[str, Any]:
        from shardfleet_testkit.simulation import Options, run_seed  # noqa: PLC0415

        result = run_seed(Options(seed=seed, play=replace(play, has_faults=False), keeps_log=True))
        if result.violations:
            self._fail(result, "without any fault")
        return dict(self.sink.values)

    def _one(self, play: Any, seed: int) -> FleetRun:
        from shardfleet_testkit.simulation import Options, run_seed, shrink  # noqa: PLC0415
        from shardfleet_testkit.simulation.faults import muted_but  # noqa: PLC0415

        muted = muted_but(self._config.getoption("--fleet-only"))
        options = Options(seed=seed, play=play, muted=muted, keeps_log=True)
        result = run_seed(options)
        self._write_log(result)
        if result.violations:
            if not muted:
                until_s = time.monotonic() + _SHRINK_S
                options = shrink(options, _ignore, is_over=lambda: time.monotonic() > until_s)
                result = run_seed(options)
            self._fail(result, self._repeat(options))
        return FleetRun(
            seed=seed,
            records=result.records,
            repetitions=result.repetitions,
            virtual_ms=result.virtual_ms,
            faults=result.faults,
            reshards=result.reshards,
            ended_hard=result.ended_hard,
        )

    def _write_log(self, result: RunResult) -> None:
        path: Path | None = self._config.getoption("--fleet-log")
        if path is not None:
            path.write_text("\n".join(result.lines) + "\n", encoding="utf-8")

    def _repeat(self, options: Options) -> str:
        from shardfleet_testkit.simulation.faults import all_but  # noqa: PLC0415

        only = f" --fleet-only={','.join(all_but(options.muted))}" if options.muted else ""
        return f"\nagain: pytest '{self._test}' --fleet-seed={options.seed}{only}"

    @staticmethod
    def _fail(result: RunResult, how: str) -> None:
        from shardfleet_testkit.simulation.failure_report import tell  # noqa: PLC0415

        pytest.fail("\n".join([*tell(result), how]), pytrace=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Details:
    effects: Literal["exact", "any"] = "exact"
    check: Callable[[Sink], object] | None = None
    shards: int = 4
    contract: str = "auto"
    policy: FailurePolicy | None = None

    def __post_init__(self) -> None:
        if self.effects not in ("exact", "any"):
            message = f"effects: {self.effects!r} found, 'exact' or 'any' allowed"
            raise ValueError(message)


def _ignore(_line: str) -> None:
    """Drop a line about faults left out: the command that repeats the run has them."""


@pytest.fixture
def sink() -> Sink:
    """Return the outside world that handlers of this test write to."""
    from shardfleet_testkit.simulation.sink import Sink  # noqa: PLC0415  # Only who asks for it waits.

    return Sink()


@pytest.fixture
def fleet(request: pytest.FixtureRequest, sink: Sink) -> Fleet:
    """Return what runs handlers in simulated fleets."""
    return Fleet(request.config, sink, test=request.node.nodeid)
