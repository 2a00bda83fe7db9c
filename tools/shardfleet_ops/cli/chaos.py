"""`shardfleet chaos`: the fleet for minutes, with processes killed and calls to AWS failing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from shardfleet_ops.cli.telling import TerminalConsole, say, tell


def chaos(
    *,
    minutes: Annotated[
        float, typer.Option(min=0.1, max=600, help="How long to feed and to make trouble.")
    ] = 5.0,
    records_per_minute: Annotated[
        int, typer.Option(min=60, max=60_000, help="How fast to feed.")
    ] = 11_000,
    error_rate: Annotated[
        float, typer.Option(min=0, max=0.5, help="Part of the calls to AWS that go wrong.")
    ] = 0.12,
    seed: Annotated[int, typer.Option(help="Of the click stream and of every choice.")] = 1,
    output: Annotated[Path, typer.Option(help="Folder for result.json.")] = Path("build/chaos"),
) -> None:
    """Run the fleet while its processes are killed, its shards resharded and its calls fail."""
    from shardfleet_local.rig.live import Display
    from shardfleet_local.rig.outcome import result_of, write_result
    from shardfleet_local.rig.profiles import chaos_options
    from shardfleet_local.rig.run import run_rig

    options = chaos_options(
        minutes=minutes,
        records_per_minute=records_per_minute,
        folder=output,
        seed=seed,
        error_rate=error_rate,
    )
    outcome = run_rig(options, Display(TerminalConsole()))
    file = write_result(outcome, output)
    tell(None, _summary(result_of(outcome)), as_json=False)
    say(file)
    if not outcome.passed:
        raise typer.Exit(1)


def _summary(result: Mapping[str, Any]) -> tuple[str, str]:
    """Return the outcome in two lines."""
    done = (
        f"{result['kills']} kills, {result['freezes']} freezes, {result['reshards']} reshards, "
        f"{result['injected_errors']:,} injected errors"
    )
    found = (
        f"{result['records']:,} records, {result['lost']:,} lost, {result['out_of_order']:,} out "
        f"of order, {result['duplicates']:,} duplicates, {result['foreign']:,} foreign, "
        f"{len(result['unsettled_leases'])} leases not at their end"
    )
    return done, f"{'PASSED' if result['passed'] else 'FAILED'}: {found}"
