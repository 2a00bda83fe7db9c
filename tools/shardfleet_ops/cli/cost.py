"""`shardfleet cost`: what the fleet has used, beside an estimate and the stream's own price."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from shardfleet.domain.cost.prices import PRICES, Prices, changed_prices
from shardfleet.domain.cost.usage import DAYS_PER_MONTH, days_of, rate_per_day
from shardfleet.domain.slots.slot import SlotState
from shardfleet.errors import ConfigurationError, ShardfleetError
from shardfleet.foreign import read_bytes, read_json
from shardfleet_ops.cli.fleet_access import (
    FleetAccess,
    JsonOption,
    reaching_aws,
    with_fleet,
)
from shardfleet_ops.cli.fleets import (
    DEFAULT_STACK,
    FleetName,
    FleetOption,
    StackOption,
    find_functions,
)
from shardfleet_ops.cli.telling import RowListing, tell
from shardfleet_ops.cost.model import (
    Setup,
    State,
    StreamMode,
    per_month,
    stream_per_month,
    workers_for,
)
from shardfleet_ops.explain.spoken import spoken_duration

_STATES = {
    State.CALM.value: "read all the time by {workers} workers",
    State.AWAKE.value: "of which some always change hands",
    State.ASLEEP.value: "that all sleep",
}


def cost(
    *,
    days: Annotated[int, typer.Option(metavar="N", help="The last N days.", min=1, max=40)] = 7,
    prices: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Your own prices: a JSON object, see docs/cost.md."),
    ] = None,
    stack: StackOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show what the fleet has cost by its ledger, an estimate, and the stream's own price."""
    table = _prices(prices)
    name = FleetName(stack, fleet_name)
    around = around_of(name)

    found = with_fleet(name, lambda fleet: _found(fleet, around, table, days=days))
    tell(found, _lines(found), as_json=as_json)


def _prices(file: Path | None) -> Prices:
    if file is None:
        return PRICES
    try:
        with file.open("rb") as opened:
            given = read_json(read_bytes(opened))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--prices {file}: {error}") from error
    if not isinstance(given, dict):
        raise ConfigurationError(f"--prices {file}: a JSON object expected, see docs/cost.md")
    return changed_prices(given)


def around_of(name: FleetName) -> dict[str, Any]:
    """
    Count alarms' metrics and dashboards, and look up memory sizes and the worker's time-out.

    Raises:
        ConfigurationError: there is no such fleet.
        ShardfleetError: Lambda, CloudWatch or Kinesis does not say.

    """
    import boto3

    from shardfleet.adapters.clients.aws_clients import region_of
    from shardfleet.adapters.sdk_errors import SdkCall

    with reaching_aws():
        fleet = find_functions(name)
        session = boto3.session.Session()
        functions, watch = session.client("lambda"), session.client("cloudwatch")

        def configured(function: str, *members: str) -> list[int]:
            call = SdkCall(f"GetFunctionConfiguration of {function}")
            found = call.run(functions.get_function_configuration, FunctionName=function)
            return [int(found[member]) for member in members]

        worker_mb, timeout_s = configured(fleet.config.worker_function, "MemorySize", "Timeout")
        (manager_mb,) = configured(fleet.manager, "MemorySize")
        alarms = fleet.of_type("AWS::CloudWatch::Alarm")
        # Without names it would tell of all alarms that there are; a fleet has some dozens.
        call, names = SdkCall("DescribeAlarms"), {"AlarmNames": alarms, "MaxRecords": 100}
        watched = call.run(watch.describe_alarms, **names)["MetricAlarms"] if alarms else []
        call, arn = SdkCall("DescribeStreamSummary"), fleet.config.stream_arn
        kinesis = session.client("kinesis", region_name=region_of(arn))
        summary = call.run(kinesis.describe_stream_summary, StreamARN=arn)
        told = summary["StreamDescriptionSummary"].get("StreamModeDetails", {}).get("StreamMode")
        mode = told or StreamMode.PROVISIONED  # A service of before there were others says nothing.
        if mode not in StreamMode.__members__:
            raise ShardfleetError(f"DescribeStreamSummary: no price is known of mode {mode[:40]!r}")
    return {
        "mode": StreamMode(mode),
        "alarm_metrics": sum(map(_watched, watched)),
        "composites": len(fleet.of_type("AWS::CloudWatch::CompositeAlarm")),
        "dashboards": len(fleet.of_type("AWS::CloudWatch::Dashboard")),
        "worker_mb": worker_mb,
        "manager_mb": manager_mb,
        "worker_timeout_ms": timeout_s * 1_000,
    }


def _watched(alarm: Mapping[str, Any]) -> int:
    """Return how many metrics an alarm watches: those of an expression are billed, it is not."""
    return sum("MetricStat" in query for query in alarm.get("Metrics", ())) or 1


async def _found(
    fleet: FleetAccess, around: dict[str, Any], prices: Prices, *, days: int
) -> dict[str, Any]:
    from shardfleet.engine.state.ledger import Ledger

    config, now_ms = fleet.config, fleet.clock.now_ms()
    shards = sum(shard.is_open for shard in await fleet.stream.list_shards())
    slots = [found.slot for found in await fleet.state.slots()]
    running = sum(slot.state is SlotState.RUNNING for slot in slots)
    workers = running or workers_for(config, shards)
    setup = Setup(shards=shards, workers=workers, **around)
    states = {
        state: per_month(config, setup, state=state, prices=prices)
        for state in (State.CALM, State.AWAKE, *([State.ASLEEP] if config.sleep else []))
    }
    stream = stream_per_month(shards, mode=setup.mode, prices=prices)
    pages = days_of(await Ledger(fleet.state.store).pages(at_ms=now_ms, days=days))
    rate = rate_per_day(pages, prices)
    return {
        "prices": {"as_of": prices.as_of, "region": prices.region},
        "days": [
            {
                "day": day.day,
                "total": day.costs(prices).total,
                "by_item": dict(day.costs(prices).by_item),
                "used": to_builtins(day.used),
                "metrics": len(day.metrics),
                "covered_ms": day.covered_ms,
            }
            for day in pages
        ],
        "per_day": rate,
        "per_month": None if rate is None else rate * DAYS_PER_MONTH,
        "estimate": {
            "shards": shards,
            "workers": workers,
            **{
                state.value: {"per_month": costs.total, "by_item": dict(costs.by_item)}
                for state, costs in states.items()
            },
        },
        "stream_mode": setup.mode.value,
        "stream_per_gb_read": stream_per_month(0, mode=setup.mode, gb_out=1.0, prices=prices)
        - stream_per_month(0, mode=setup.mode, prices=prices),
        "stream_per_month": stream,
        "part_of_stream": None if rate is None or not stream else rate * DAYS_PER_MONTH / stream,
        "lag_objective_ms": config.lag_objective_ms or None,
        "at_ms": now_ms,
    }


def _lines(found: dict[str, Any]) -> Iterator[str | RowListing]:
    prices, estimate = found["prices"], found["estimate"]
    yield f"List prices of {prices['as_of']}, {prices['region']}; without free tier."
    yield ""
    if found["days"]:
        yield _table(found["days"])
    else:
        yield "The ledger is empty: no function of the fleet has ended an invocation yet."
    yield ""
    if found["per_day"] is None:
        yield "At what rate: not known yet, the ledger covers less than ten minutes."
    else:
        yield (
            f"At this rate: ${found['per_day']:.2f} a day, ${found['per_month']:.2f} a month, "
            "alarms and dashboards not counted."
        )
    for state, words in _STATES.items():
        if (costs := estimate.get(state)) is None:
            continue
        items = ", ".join(
            f"{name.replace('_', ' ')} ${dollars:.2f}" for name, dollars in costs["by_item"].items()
        )
        yield (
            f"Estimate for {estimate['shards']} shards {words.format(**estimate)}: "
            f"${costs['per_month']:.2f} a month ({items})."
        )
    part = found["part_of_stream"]
    compared = "" if part is None else f"; at its rate the fleet costs {part:.0%} of that"
    what = "shards themselves" if found["stream_mode"] == StreamMode.PROVISIONED else "hours"
    read = ""
    if per_gb := found["stream_per_gb_read"]:
        read = f"; ${per_gb:.3f} for each GB that the fleet reads"
    yield (
        f"The stream's {what}: ${found['stream_per_month']:.2f} a month, records put "
        f"not counted{read}{compared}."
    )
    if lag_ms := found["lag_objective_ms"]:
        yield f"Objective: no shard more than {lag_ms / 1000:.0f} s behind."


def _table(days: list[dict[str, Any]]) -> RowListing:
    items = list(days[0]["by_item"])
    figures = [*(item.replace("_", " ") for item in items), "total", "covered"]
    listing = RowListing(
        ("day", *figures), right=figures, given_up=(*reversed(figures[:-2]), "covered")
    )
    for day in days:
        amounts = [f"${day['by_item'][item]:.4f}" for item in items]
        covered = spoken_duration(day["covered_ms"])
        listing.rows.append(((day["day"], *amounts, f"${day['total']:.4f}", covered), ""))
    return listing
