"""`shardfleet chaos`: the fleet for minutes, with processes killed and calls to AWS failing."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardfleet_ops.cli.telling import say, tell

if TYPE_CHECKING:
    from shardfleet_local.chaos.outcome import ChaosOutcome


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
    from shardfleet_local.chaos.outcome import write_result
    from shardfleet_local.chaos.run import ChaosOptions, run_chaos

    options = ChaosOptions(
        minutes=minutes,
        records_per_minute=records_per_minute,
        folder=output,
        seed=seed,
        error_rate=error_rate,
    )
    outcome = run_chaos(options, lambda line: tell(None, [line], as_json=False))
    write_result(outcome, output / "result.json")
    tell(None, _summary(outcome), as_json=False)
    say(output / "result.json")
    if not outcome.passed:
        raise typer.Exit(1)


def _summary(outcome: "ChaosOutcome") -> tuple[str, str]:
    """Return the outcome in two lines."""
    verdict = outcome.verdict
    done = (
        f"{outcome.kills} kills, {outcome.strikes.get('freeze', 0)} freezes, "
        f"{outcome.reshards} reshards, {outcome.errors:,} injected errors"
    )
    found = (
        f"{verdict.records_in:,} records, {len(verdict.lost):,} lost, "
        f"{len(verdict.out_of_order):,} out of order, {verdict.duplicates:,} duplicates, "
        f"{verdict.foreign:,} foreign, {len(outcome.unsettled)} leases not at their end"
    )
    return done, f"{'PASSED' if outcome.passed else 'FAILED'}: {found}"
