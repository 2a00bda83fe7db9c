"""`shardfleet simulate`: whole fleets in one process, from seeds, with faults everywhere."""

import json
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardfleet.errors import ConfigurationError
from shardfleet_ops.cli.fleet_access import JsonOption
from shardfleet_ops.cli.telling import aside, say, tell

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardfleet_testkit.simulation import Options, RunResult
    from shardfleet_testkit.simulation.campaign import Totals
    from shardfleet_testkit.simulation.play import Play

_VISITS = 500
# Looking for the faults that a failure takes may cost so much real time.
_SHRINK_S = 60.0
_WITHOUT = "Without --seed: "


def simulate(
    *,
    seed: Annotated[
        int, typer.Option(help="Replay this seed; 0: run one seed after the other.", min=0)
    ] = 0,
    log: Annotated[bool, typer.Option("--log", help="Print the replayed seed's events.")] = False,
    mute: Annotated[
        str, typer.Option(metavar="KIND,KIND", help="Replay without these kinds of faults.")
    ] = "",
    only: Annotated[
        str | None, typer.Option(metavar="KIND,KIND", help="Replay with these kinds alone.")
    ] = None,
    rates: Annotated[
        str,
        typer.Option(
            metavar="KIND=RATE,...",
            help="These kinds with these probabilities, the others as drawn.",
        ),
    ] = "",
    shrink: Annotated[
        bool, typer.Option(help="Of a seed that fails, find the faults that it takes.")
    ] = True,
    handler: Annotated[
        str, typer.Option(metavar="MODULE:FUNCTION", help="A handler of yours, instead of ours.")
    ] = "",
    input_file: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="Records for it, as JSON lines.")
    ] = None,
    key: Annotated[str, typer.Option(help="The field with the partition key.")] = "",
    hours: Annotated[
        float, typer.Option(help="With --handler: virtual hours in which records flow.")
    ] = 0.25,
    any_effects: Annotated[
        bool,
        typer.Option(
            "--any-effects",
            help="With --handler: the sink need not end up as it does without faults.",
        ),
    ] = False,
    minutes: Annotated[
        float, typer.Option(help=f"{_WITHOUT}begin no more seeds after that.")
    ] = 1.0,
    seeds: Annotated[
        int, typer.Option(help=f"{_WITHOUT}so many, instead of for some minutes.", min=0)
    ] = 0,
    jobs: Annotated[int, typer.Option(help=f"{_WITHOUT}processes.", min=1)] = 1,
    first_seed: Annotated[int, typer.Option(help=f"{_WITHOUT}where to begin.", min=1)] = 1,
    output: Annotated[
        Path | None, typer.Option(help=f"{_WITHOUT}a JSON file for the sums.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the production engine against failing ports in virtual time, and check invariants."""
    from shardfleet_testkit.simulation import Options
    from shardfleet_testkit.simulation.faults import muted_but, names_checked, rates_checked

    if (input_file or key) and not handler:
        raise ConfigurationError("--input and --key are for a handler of yours: name it, --handler")
    muted = names_checked(mute) | muted_but(only)
    options = Options(seed=seed, keeps_log=bool(seed), muted=muted, rates=rates_checked(rates))
    with aside(as_json):
        if handler:
            play = _play(handler, input_file, key or None, hours=hours)
            sink = _sink_without_faults(play)
            options = replace(options, play=play if any_effects else replace(play, expected=sink))
        if seed:
            totals = _replay(options, log=log, shrinks=shrink)
        else:
            wanted = range(first_seed, first_seed + seeds) if seeds else count(first_seed)
            totals = _campaign(
                options, wanted, minutes=inf if seeds else minutes, jobs=jobs, output=output
            )
    if as_json:
        tell(totals.body(), (), as_json=True)
    if totals.failed:
        raise typer.Exit(1)


def _play(handler: str, input_file: Path | None, key: str | None, *, hours: float) -> "Play":
    from shardfleet_testkit.simulation.play import Play, records_of
    from shardfleet_testkit.simulation.sample_records import visits

    # As for Python itself: code in the current folder can be imported.
    sys.path.insert(0, str(Path.cwd()))
    if input_file is not None:
        records = records_of(input_file, key=key)
    else:
        records = visits(_VISITS)
        say(f"no --input: {_VISITS} generated page views", err=True)
    return Play(handler=handler, records=records, hours=hours)


def _sink_without_faults(play: "Play") -> dict[str, Any]:
    """Find out what the sink holds when nothing goes wrong."""
    from shardfleet_testkit.simulation import Options, run_seed

    # Says what is wrong with the handler before anything runs.
    play.load()
    calm = replace(play, has_faults=False)
    result = run_seed(Options(seed=1, keeps_log=True, play=calm))
    if result.violations:
        _print_failure(result, calm)
        say("without any fault")
        raise typer.Exit(1)
    return dict(calm.sink.values)


def _replay(options: "Options", *, log: bool, shrinks: bool) -> "Totals":
    from shardfleet_testkit.simulation import run_seed, shrink
    from shardfleet_testkit.simulation.campaign import Totals
    from shardfleet_testkit.simulation.faults import all_but

    result = run_seed(options)
    if log:
        for line in result.lines:
            say(line)
    if result.violations and shrinks:
        tell_progress = partial(say, err=True)
        tell_progress("looking for the faults that it takes ...")
        until_s = time.monotonic() + _SHRINK_S
        simpler = shrink(options, tell_progress, is_over=lambda: time.monotonic() > until_s)
        result = run_seed(simpler)
        say(f"with --seed {options.seed} --only {','.join(all_but(simpler.muted))}:")
    if result.violations:
        _print_failure(result, options.play)
    totals = Totals()
    totals.add(result)
    tell(None, [totals.line()], as_json=False)
    return totals


def _print_failure(result: "RunResult", play: "Play | None") -> None:
    from shardfleet_testkit.simulation import failure_report, story

    for line in story(result) if play is None else failure_report.tell(result):
        say(line)  # As it is in the log, with its whole numbers.
    if play is None:
        tell(None, _violations(result), as_json=False)


def _violations(result: "RunResult") -> list[str]:
    return [f"seed {result.seed}: {violation}" for violation in result.violations]


def _campaign(
    options: "Options", seeds: "Iterable[int]", *, minutes: float, jobs: int, output: Path | None
) -> "Totals":
    from shardfleet_testkit.simulation.campaign import Totals, campaign

    def done(result: "RunResult", totals: Totals) -> None:
        tell(None, _violations(result), as_json=False)
        if len(totals.seeds) % 20 == 0:
            tell(None, [totals.line()], as_json=False, err=True)

    totals = campaign(iter(seeds), minutes=minutes, jobs=jobs, options=options, done=done)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        body, known = totals.body(), {}
        with suppress(OSError, ValueError):
            known = dict(json.loads(output.read_text("utf-8")))
        if "before" in known:  # What this run's rate is beside: it outlives the runs.
            body["before"] = known["before"]
        output.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    tell(None, [totals.line()], as_json=False)
    if totals.failed and options.play is not None:
        first = replace(options, seed=min(result.seed for result in totals.failed), keeps_log=True)
        _replay(first, log=False, shrinks=True)
    return totals
