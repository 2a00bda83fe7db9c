"""`shardfleet cost`: what the fleet has used, beside an estimate and the stream's own price."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from shardfleet.cli.fleet_access import (
    DEFAULT_STACK,
    JsonOption,
    StackOption,
    stack_outputs,
    with_fleet,
)
from shardfleet.cli.instants import spoken_duration, spoken_instant

if TYPE_CHECKING:
    from shardfleet.cli.fleet_access import FleetAccess
    from shardfleet.domain.cost.bill import BilledDay
    from shardfleet.domain.cost.estimate import Setup
    from shardfleet.domain.cost.prices import Prices

_ALARM, _DASHBOARD = "AWS::CloudWatch::Alarm", "AWS::CloudWatch::Dashboard"
_CENTS = 100


def cost(
    *,
    days: Annotated[int, typer.Option(metavar="N", help="The last N days.", min=1, max=40)] = 7,
    prices: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Your own prices: a JSON object, see docs/cost.md."),
    ] = None,
    stack: StackOption = DEFAULT_STACK,
    as_json: JsonOption = False,
) -> None:
    """Show what the fleet has cost by its ledger, an estimate, and the stream's own price."""
    table = _prices(prices)
    alarms, dashboards, memory = _around(stack)

    async def look(fleet: "FleetAccess") -> dict[str, Any]:
        from shardfleet.domain.cost.estimate import Setup
        from shardfleet.domain.slots.slot import SlotState

        shards = sum(shard.is_open for shard in await fleet.stream.list_shards())
        slots = [found.slot for found in await fleet.state.slots()]
        setup = Setup(
            shards=shards,
            workers=sum(slot.state is SlotState.RUNNING for slot in slots) or None,
            alarms=alarms,
            dashboards=dashboards,
            **memory,
        )
        return await _found(fleet, setup, table, days=days)

    found = with_fleet(stack, look)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    _print(Console(highlight=False, soft_wrap=True), found)


def _prices(file: Path | None) -> "Prices":
    from shardfleet.domain.cost.prices import PRICES, changed_prices
    from shardfleet.errors import ConfigurationError

    if file is None:
        return PRICES
    try:
        given = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--prices {file}: {error}") from error
    if not isinstance(given, dict):
        raise ConfigurationError(f"--prices {file}: a JSON object expected, see docs/cost.md")
    return changed_prices(given)


def _around(stack: str) -> tuple[int, int, dict[str, int]]:
    """Count alarms and dashboards, and look up memory sizes and the worker's time-out."""
    import boto3

    from shardfleet.cli.fleet_access import reaching_aws

    with reaching_aws():
        outputs = stack_outputs(stack)
        session = boto3.session.Session()
        pages = session.client("cloudformation").get_paginator("list_stack_resources")
        kinds = [
            resource["ResourceType"]
            for page in pages.paginate(StackName=stack)
            for resource in page["StackResourceSummaries"]
        ]
        functions = session.client("lambda")
        worker, manager = (
            functions.get_function_configuration(FunctionName=outputs[name])
            for name in ("WorkerFunction", "ManagerFunction")
        )
    return (
        kinds.count(_ALARM),
        kinds.count(_DASHBOARD),
        {
            "worker_mb": int(worker["MemorySize"]),
            "manager_mb": int(manager["MemorySize"]),
            "worker_timeout_ms": int(worker["Timeout"]) * 1_000,
        },
    )


async def _found(
    fleet: "FleetAccess", setup: "Setup", prices: "Prices", *, days: int
) -> dict[str, Any]:
    from shardfleet.domain.cost.bill import days_of, rate_per_day
    from shardfleet.domain.cost.estimate import (
        DAYS_PER_MONTH,
        per_month,
        stream_per_month,
        workers_for,
    )
    from shardfleet.engine.state.ledger import Ledger

    config = fleet.config
    now_ms = fleet.clock.now_ms()
    pages = await Ledger(fleet.state.store).pages(at_ms=now_ms, days=days)
    billed = days_of(pages, prices)
    rate = rate_per_day(billed)
    estimated = per_month(config, setup, prices)
    stream = stream_per_month(setup.shards, prices)
    workers = workers_for(config, setup.shards) if setup.workers is None else setup.workers
    return {
        "prices": {"as_of": prices.as_of, "region": prices.region},
        "days": [_day(day) for day in billed],
        "per_day": rate,
        "per_month": None if rate is None else rate * DAYS_PER_MONTH,
        "estimate": {
            "shards": setup.shards,
            "workers": workers,
            "per_month": estimated.total,
            "by_item": dict(estimated.by_item),
        },
        "stream_per_month": stream,
        "part_of_stream": None if rate is None or not stream else rate * DAYS_PER_MONTH / stream,
        "lag_objective_ms": config.lag_objective_ms or None,
        "budget_per_day": config.budget_cents_per_day / _CENTS or None,
        "regime": await _regime(fleet),
        "at_ms": now_ms,
    }


async def _regime(fleet: "FleetAccess") -> dict[str, Any] | None:
    from shardfleet.engine.manager.spending import RegimeRecord

    found = await RegimeRecord(fleet.state.store).read()
    return None if found is None else asdict(found)


def _day(day: "BilledDay") -> dict[str, Any]:
    return {
        "day": day.day,
        "total": day.costs.total,
        "by_item": dict(day.costs.by_item),
        "used": asdict(day.used),
        "metrics": day.metrics,
        "covered_ms": day.covered_ms,
    }


def _print(console: Console, found: dict[str, Any]) -> None:
    prices = found["prices"]
    console.print(f"List prices of {prices['as_of']}, {prices['region']}; without free tier.\n")
    if found["days"]:
        console.print(_table(found["days"]))
    else:
        console.print("The ledger is empty: no function of the fleet has ended an invocation yet.")
    for line in _lines(found):
        console.print(line)


def _table(days: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    items = list(days[0]["by_item"])
    for name in ("day", *(item.replace("_", " ") for item in items), "total", "covered"):
        table.add_column(name, justify="left" if name == "day" else "right")
    for day in days:
        amounts = [f"${day['by_item'][item]:.4f}" for item in items]
        covered = spoken_duration(day["covered_ms"])
        table.add_row(day["day"], *amounts, f"${day['total']:.4f}", covered)
    return table


def _lines(found: dict[str, Any]) -> list[str]:
    estimate = found["estimate"]
    lines = [""]
    if found["per_day"] is None:
        lines.append("At what rate: not known yet, the ledger covers less than ten minutes.")
    else:
        lines.append(
            f"At this rate: ${found['per_day']:.2f} a day, ${found['per_month']:.2f} a month."
        )
    items = ", ".join(
        f"{name.replace('_', ' ')} ${dollars:.2f}" for name, dollars in estimate["by_item"].items()
    )
    lines.append(
        f"Estimate for {estimate['shards']} shards read all the time by {estimate['workers']} "
        f"workers: ${estimate['per_month']:.2f} a month ({items})."
    )
    part = found["part_of_stream"]
    compared = "" if part is None else f"; at its rate the fleet costs {part:.0%} of that"
    lines.append(
        f"The stream's shards themselves: ${found['stream_per_month']:.2f} a month, records put "
        f"not counted{compared}."
    )
    if found["lag_objective_ms"]:
        lines.append(
            f"Objective: no shard more than {found['lag_objective_ms'] / 1000:.0f} s behind."
        )
    if found["budget_per_day"]:
        lines.append(f"Budget: ${found['budget_per_day']:.2f} a day.")
    if found["regime"]:
        regime, now_ms = found["regime"], found["at_ms"]
        since = spoken_instant(regime["since_ms"], now_ms=now_ms)
        lines.append(f"Regime: {regime['name'].lower()} since {since}: {regime['reason']}.")
    return lines
