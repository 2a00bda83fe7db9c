"""`shardfleet what-if`: who would have which shard, by the manager's own planners."""

from typing import Annotated

import typer
from msgspec import to_builtins

from shardfleet.domain.reasons import reason_json
from shardfleet.domain.turn_log import about
from shardfleet_ops.cli.fleet_access import (
    FleetAccess,
    JsonOption,
    with_fleet,
)
from shardfleet_ops.cli.fleets import DEFAULT_STACK, FleetName, FleetOption, StackOption
from shardfleet_ops.cli.telling import tell
from shardfleet_ops.explain.forecast import Forecast, Question
from shardfleet_ops.explain.forecast import what_if as foresee
from shardfleet_ops.explain.spoken import counted, spoken_duration


def what_if(
    *,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="So many workers.", min=0)
    ] = None,
    lose: Annotated[
        str, typer.Option(metavar="WORKER", help="This worker, or slot, is lost.")
    ] = "",
    split: Annotated[str, typer.Option(metavar="SHARD", help="This shard is split in two.")] = "",
    stack: StackOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show who would have which shard and why; by default, what happens next. No writes."""
    question = Question(workers=workers, lose=lose, split=split)

    async def ask(fleet: FleetAccess) -> tuple[Forecast, int]:
        from shardfleet.adapters.system import SystemEntropy
        from shardfleet_ops.operate.read import read_snapshot

        snapshot = await read_snapshot(
            fleet.config,
            leases=fleet.leases,
            state=fleet.state,
            stream=fleet.stream,
            clock=fleet.clock,
            entropy=SystemEntropy(),
        )
        return foresee(fleet.config, snapshot, question), fleet.config.cycle_ms

    forecast, cycle_ms = with_fleet(FleetName(stack, fleet_name), ask)
    asked = {"workers": workers, "lose": lose or None, "split": split or None}
    document = {"question": asked} | _as_json(forecast, cycle_ms)
    tell(document, _told(forecast, cycle_ms), as_json=as_json)


def _as_json(forecast: Forecast, cycle_ms: int) -> dict[str, object]:
    return {
        "turns": forecast.turns,
        "settled": forecast.settled,
        "within_ms": forecast.turns * cycle_ms,
        "steps": [
            {
                "turn": turn,
                **to_builtins(entry),
                "reason": reason_json(entry.reason) if entry.reason else None,
                "text": about(entry),
            }
            for turn, entry in forecast.steps
        ],
        "before": dict(forecast.before),
        "after": dict(forecast.after),
        "left": {key: reason_json(why) for key, why in forecast.left.items()},
    }


def _told(forecast: Forecast, cycle_ms: int) -> list[str]:
    if not forecast.steps:
        lines = ["Nothing would happen: every shard stays where it is."]
    else:
        took = spoken_duration(forecast.turns * cycle_ms)
        lines = [f"What the manager would do, turn by turn (one each {cycle_ms / 1000:.0f} s):"]
        lines += [f"  turn {turn:<3} {about(entry)}" for turn, entry in forecast.steps]
        end = f"After {forecast.turns} turns, within {took}, nothing more would happen."
        lines.append(end if forecast.settled else "It would not come to rest within these turns.")
    lines += ["", "Who has what: now, and then"]
    workers = sorted({*forecast.before, *forecast.after})
    for worker_id in workers:
        had, has = (held.get(worker_id, ()) for held in (forecast.before, forecast.after))
        lines.append(f"  {worker_id}: {counted(len(had), 'shard')}, then {len(has)}")
        lines += [f"    - {key}" for key in had if key not in has]
        lines += [f"    + {key}" for key in has if key not in had]
    for key, why in forecast.left.items():
        lines.append(f"  nobody: {key}: {why}")
    return [*lines, "", "This was a forecast: nothing was changed."]
