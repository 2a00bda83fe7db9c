"""`shardfleet explain`: why a shard is where it is and why it moved; the same for a worker."""

from typing import Annotated, Any

import typer
from msgspec import to_builtins

from shardfleet.domain.turn_log import FLEET
from shardfleet.errors import ConfigurationError
from shardfleet_ops.cli.fleet_access import (
    FleetAccess,
    JsonOption,
    with_fleet,
)
from shardfleet_ops.cli.fleets import DEFAULT_STACK, FleetName, FleetOption, StackOption
from shardfleet_ops.cli.instants import instant_ms, spoken_instant
from shardfleet_ops.cli.telling import tell
from shardfleet_ops.explain.answer import (
    Explanation,
    Known,
    explain_fleet,
    explain_shard,
    explain_worker,
)
from shardfleet_ops.explain.spoken import spoken_duration

_GLOSSARY = (
    "A stream is divided into shards; a lease says which worker reads a shard and how far it is. "
    "Workers renew their leases every few seconds; the manager looks at all of them several times "
    "a minute, gives away those that nobody renews, and evens out the load."
)


def explain(
    *,
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="[SHARD|WORKER]", help="A shard's, worker's or slot's id, or fleet."
        ),
    ] = None,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Tell what happened since: 15m, epoch ms, ISO 8601.")
    ] = "7d",
    stack: StackOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show why a shard is with its worker and why it moved; without a name, of every shard."""

    async def ask(fleet: FleetAccess) -> tuple[int, list[Explanation]]:
        from shardfleet_ops.operate.read import read_known

        reading = await fleet.reading()
        known = await read_known(
            reading,
            fleet.state,
            shards=await fleet.stream.list_shards(),
            since_ms=instant_ms("--since", since, now_ms=reading.at_ms),
        )
        return reading.at_ms, _answers(known, subject)

    now_ms, answers = with_fleet(FleetName(stack, fleet_name), ask)
    found = [_as_json(each, now_ms) for each in answers]
    # All of a fleet at once: where each shard is and why, without what came before.
    with_story = subject is not None
    lines = [line for e in answers for line in told(e, now_ms=now_ms, with_story=with_story)]
    tell(found[0] if subject else found, [*lines, _GLOSSARY], as_json=as_json)


def _answers(known: Known, subject: str | None) -> list[Explanation]:
    leases = sorted(lease.lease_key for lease in known.reading.leases)
    if subject is None:
        return [answer for key in leases if (answer := explain_shard(known, key)) is not None]
    if subject == FLEET:
        return [explain_fleet(known)]
    answer = explain_worker(known, subject) or explain_shard(known, subject)
    if answer is None:
        raise ConfigurationError(
            f"{subject!r} is no shard and no worker of this fleet; workers: "
            f"{', '.join(known.workers) or 'none'}; shards with a lease: "
            f"{', '.join(leases) or 'none'}"
        )
    return [answer]


def told(answer: Explanation, *, now_ms: int, with_story: bool) -> list[str]:
    """Return an explanation as lines of text."""
    since = ""
    if answer.since_ms is not None:
        ago = spoken_duration(now_ms - answer.since_ms)
        since = f", since {spoken_instant(answer.since_ms, now_ms=now_ms)} ({ago} ago)"
    lines = [f"{answer.subject}: {answer.state.lower().replace('_', ' ')}{since}"]
    lines.append(f"  Now: {answer.now}")
    if answer.why:
        lines.append(f"  Why: {answer.why}")
    if with_story:
        lines.append("  What happened:" if answer.story else "  Nothing happened to it lately.")
        for event in answer.story:
            at = spoken_instant(event.at_ms, now_ms=now_ms)
            ago = f"{spoken_duration(now_ms - event.at_ms)} ago"
            lines.append(f"    {at}  {ago:>12}  {event.text}")
    return [*lines, ""]


def _as_json(answer: Explanation, now_ms: int) -> dict[str, object]:
    found: dict[str, Any] = to_builtins(answer)
    found["since_age_ms"] = None if answer.since_ms is None else now_ms - answer.since_ms
    for event in found["story"]:
        event["age_ms"] = now_ms - event["at_ms"]
    return found
