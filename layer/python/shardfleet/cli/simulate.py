"""`shardfleet simulate`: whole fleets in one process, from seeds, with faults everywhere."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from shardfleet.testing.simulation import Options


def simulate(
    *,
    seed: Annotated[
        int, typer.Option(help="Replay this seed; 0: run one seed after the other.", min=0)
    ] = 0,
    log: Annotated[bool, typer.Option("--log", help="Print the replayed seed's events.")] = False,
    mute: Annotated[
        str, typer.Option(metavar="KIND,KIND", help="Replay without these kinds of faults.")
    ] = "",
    shrink: Annotated[
        bool, typer.Option(help="Of a seed that fails, find the faults that it takes.")
    ] = True,
    minutes: Annotated[
        float, typer.Option(help="Without --seed: begin no more seeds after that.")
    ] = 1.0,
    jobs: Annotated[int, typer.Option(help="Without --seed: processes.", min=1)] = 1,
    first_seed: Annotated[int, typer.Option(help="Without --seed: where to begin.", min=1)] = 1,
    output: Annotated[
        Path | None, typer.Option(help="Without --seed: a JSON file for the sums.")
    ] = None,
) -> None:
    """Run the production engine against failing ports in virtual time, and check invariants."""
    from shardfleet.testing.simulation import Options

    if seed:
        muted = frozenset(kind for kind in mute.split(",") if kind)
        options = Options(seed=seed, keeps_log=True, muted=_checked(muted))
        if not _replay(options, log=log, shrinks=shrink):
            raise typer.Exit(1)
        return
    if not _campaign(minutes=minutes, jobs=jobs, first_seed=first_seed, output=output):
        raise typer.Exit(1)


def _checked(muted: frozenset[str]) -> frozenset[str]:
    from dataclasses import fields

    from shardfleet.errors import ConfigurationError
    from shardfleet.testing.simulation.faults import FaultMix

    known = [kind.name for kind in fields(FaultMix)]
    unknown = sorted(muted - set(known))
    if unknown:
        raise ConfigurationError(
            f"--mute: {', '.join(unknown)} found, of {', '.join(known)} allowed"
        )
    return muted


def _replay(options: "Options", *, log: bool, shrinks: bool) -> bool:
    from shardfleet.testing.simulation import run_seed, shrink, story
    from shardfleet.testing.simulation.campaign import Totals

    result = run_seed(options)
    if log:
        for line in result.lines:
            typer.echo(line)
    if result.violations and shrinks:
        err = Console(stderr=True, highlight=False)
        err.print("looking for the faults that it takes ...")
        simpler = shrink(options, err.print)
        result = run_seed(simpler)
        typer.echo(f"with --mute {','.join(sorted(simpler.muted))}:")
    for line in story(result):
        typer.echo(line)
    for violation in result.violations:
        typer.echo(f"seed {result.seed}: {violation}")
    totals = Totals()
    totals.add(result)
    typer.echo(totals.line())
    return not result.violations


def _campaign(*, minutes: float, jobs: int, first_seed: int, output: Path | None) -> bool:
    from shardfleet.testing.simulation.campaign import Totals, campaign
    from shardfleet.testing.simulation.running import RunResult

    def done(result: RunResult, totals: Totals) -> None:
        for violation in result.violations:
            typer.echo(f"seed {result.seed}: {violation}")
        if len(totals.seeds) % 20 == 0:
            typer.echo(totals.line(), err=True)

    totals = campaign(minutes=minutes, jobs=jobs, first_seed=first_seed, done=done)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(totals.body(), indent=2) + "\n", encoding="utf-8")
    typer.echo(totals.line())
    return not totals.failed
