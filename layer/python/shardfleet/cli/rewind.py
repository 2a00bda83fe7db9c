"""`shardfleet rewind`: let shards be read again from an earlier place."""

import asyncio
import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from shardfleet.cli.approval import (
    DEFAULT_WAIT_S,
    DryRunOption,
    WaitOption,
    YesOption,
    approved,
    person,
)
from shardfleet.cli.fleet_access import DEFAULT_STACK, JsonOption, StackOption, with_fleet

if TYPE_CHECKING:
    from collections.abc import Collection

    from shardfleet.cli.fleet_access import FleetAccess
    from shardfleet.domain.positions.rewinds import RewindRow, RewindTarget
    from shardfleet.engine.operate.rewind import RewindPlan
    from shardfleet.events import Event

_EXIT_FAILED = 1
_HOUR_MS = 3_600_000
# Kinesis's numbers have 56 digits; epoch milliseconds have 13.
_SEQUENCE = re.compile(r"(\d{20,129})(?::(\d{1,9}))?")
_TO_HELP = "TRIM_HORIZON, a time (15m, epoch ms, ISO 8601), or the last record that stays done."


def rewind(
    *,
    to: Annotated[str, typer.Option("--to", metavar="PLACE", help=_TO_HELP)],
    shard: Annotated[
        list[str] | None, typer.Argument(metavar="[SHARD]...", help="Shards with leases.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every lease, finished ones too.")] = False,
    with_children: Annotated[
        bool, typer.Option("--with-children", help="Descendants too, to their beginnings.")
    ] = False,
    stay_paused: Annotated[
        bool, typer.Option("--stay-paused", help="Do not resume them afterwards.")
    ] = False,
    pages_most: Annotated[
        int, typer.Option("--pages", help="Pages of 1,000 counted per shard, one a second.", min=1)
    ] = 60,
    wait_s: WaitOption = DEFAULT_WAIT_S,
    stack: StackOption = DEFAULT_STACK,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Set shards back, after a count of what will come again; pauses and resumes them itself."""

    async def work(fleet: "FleetAccess") -> int:
        from shardfleet.domain.sleep.pauses import Pause
        from shardfleet.engine.operate.pause import OperatorPorts
        from shardfleet.engine.operate.rewind import Rewinder

        target = _target(to, shard or [], now_ms=fleet.clock.now_ms())
        keys = await _chosen(fleet, shard or [], every=every)
        kept_ms = await asyncio.to_thread(_kept_since_ms, fleet)
        at_work = Rewinder(
            fleet.config,
            OperatorPorts(leases=fleet.leases, state=fleet.state, clock=fleet.clock),
            stream=fleet.stream,
            events=_NobodyListens(),
            pages_most=pages_most,
        )
        plan = await at_work.preview(keys, target, with_children=with_children)
        telling = _Telling(to, plan, kept_ms=kept_ms, as_json=as_json)
        if not as_json:
            telling.preview()
        if not plan.keys or not approved(yes=yes, dry_run=dry_run, as_json=as_json):
            telling.result(plan.rows, written=False)
            return 0
        rows = await at_work.carry_out(
            plan,
            Pause(person(), fleet.clock.now_ms(), f"rewind to {to}"),
            within_ms=round(wait_s * 1000),
            stay_paused=stay_paused,
        )
        telling.result(rows, written=True)
        return _EXIT_FAILED if any(row.state.value == "HELD" for row in rows) else 0

    raise typer.Exit(with_fleet(stack, work))


class _NobodyListens:
    """Oddities of aggregates were told when they were read first."""

    def emit(self, event: "Event") -> None:
        """Drop it."""


def _target(text: str, shards: list[str], *, now_ms: int) -> "RewindTarget":
    """
    Read where to.

    Raises:
        ConfigurationError: no place, or a record's number for several shards.

    """
    from shardfleet.cli.instants import instant_ms
    from shardfleet.domain.positions.rewinds import RewindTarget
    from shardfleet.domain.stream.sequence import (
        AT_TIMESTAMP,
        AT_TRIM_HORIZON,
        ExtendedSequenceNumber,
    )
    from shardfleet.errors import ConfigurationError

    if text.upper() == "TRIM_HORIZON":
        return RewindTarget(AT_TRIM_HORIZON)
    if number := _SEQUENCE.fullmatch(text):
        if len(shards) != 1:
            raise ConfigurationError(
                f"--to {text}: the number of a record belongs to one shard; name that one shard"
            )
        position = ExtendedSequenceNumber(number[1], int(number[2] or 0))
        return RewindTarget(position, whole_record=number[2] is None)
    at_ms = instant_ms("--to", text, now_ms=now_ms)
    return RewindTarget(ExtendedSequenceNumber(AT_TIMESTAMP, at_ms))


async def _chosen(fleet: "FleetAccess", given: list[str], *, every: bool) -> tuple[str, ...]:
    from shardfleet.errors import ConfigurationError

    if bool(given) == every:
        raise ConfigurationError("name the shards to be set back, or --all")
    known = [lease.lease_key for lease in (await fleet.leases.survey()).leases]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ConfigurationError(
            f"no lease: {', '.join(unknown)}; there are: {', '.join(known) or 'none'}"
        )
    return tuple(known if every else dict.fromkeys(given))


def _kept_since_ms(fleet: "FleetAccess") -> int:
    """Return from when on the stream still has its records."""
    import boto3

    client = boto3.session.Session().client(
        "kinesis", region_name=fleet.config.stream_arn.split(":")[3]
    )
    found = client.describe_stream_summary(StreamARN=fleet.config.stream_arn)
    hours = found["StreamDescriptionSummary"]["RetentionPeriodHours"]
    return fleet.clock.now_ms() - hours * _HOUR_MS


class _Telling:
    """What a rewind says, before and after."""

    def __init__(self, to: str, plan: "RewindPlan", *, kept_ms: int, as_json: bool) -> None:
        self._to = to
        self._plan = plan
        self._kept_ms = kept_ms
        self._as_json = as_json
        self._console = Console(highlight=False, soft_wrap=True)

    def preview(self) -> None:
        """Say what would happen, and what would not."""
        for row in self._plan.rows:
            self._say(_row_words(row, will="will come again"))
            if row.children_ahead:
                self._say(
                    f"  its children are ahead ({', '.join(row.children_ahead)}): at their "
                    "owner's next turn they wait for it, and records of a key come again after "
                    "newer ones; --with-children sets them back, too"
                )
        if self._plan.unleased:
            self._say(
                f"Not read again, for they have no lease any more: {', '.join(self._plan.unleased)}"
            )
        if asked_ms := self._expired_ms():
            self._say(
                f"The stream has only what arrived since {_time(self._kept_ms)}: records from "
                f"{_time(asked_ms)} until then have expired"
            )
        if self._plan.keys:
            self._say("What is handled until the shards are given up comes again as well.")

    def result(self, rows: "Collection[RewindRow]", *, written: bool) -> None:
        """Say what was done; as JSON, everything."""
        if self._as_json:
            document: dict[str, Any] = {
                "written": written,
                "to": self._to,
                "leases": [asdict(row) for row in rows],
                "unleased": list(self._plan.unleased),
                "kept_since_ms": self._kept_ms,
            }
            typer.echo(json.dumps(document, indent=2))
        elif written:
            for row in rows:
                self._say(_row_words(row, will="come again now"))

    def _expired_ms(self) -> int:
        """Return the instant asked for if the stream has lost some of what followed it, else 0."""
        targets = self._plan.targets.values()
        asked_ms = max((target.checkpoint.sub_sequence_number for target in targets), default=0)
        is_instant = any(target.checkpoint.sequence_number == "AT_TIMESTAMP" for target in targets)
        return asked_ms if is_instant and asked_ms < self._kept_ms else 0

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False)


def _row_words(row: "RewindRow", *, will: str) -> str:
    if row.state.value != "SET_BACK":
        return f"{row.lease_key} stays as it is: {row.why}"
    least = "" if row.complete else "at least "
    when = ""
    if row.first_arrived_ms is not None and row.last_arrived_ms is not None:
        when = f", arrived {_time(row.first_arrived_ms)} to {_time(row.last_arrived_ms)}"
    return (
        f"{row.lease_key} from {row.checkpoint} back to {row.to}: {least}{row.records} records "
        f"({row.bytes} bytes{when}) {will}"
    )


def _time(at_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
