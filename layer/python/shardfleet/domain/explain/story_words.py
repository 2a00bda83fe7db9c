"""
What happened, in sentences that a person understands who has read nothing.

Planners give short reasons with their figures; what they mean is said here. A reason that is not
known here is given as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardfleet.domain.explain.turn_log import FLEET, Entry, Happening

# What the happening has said already.
_SAID = re.compile(r"^(unowned|expired under \S+)(; |$)")
_REASONS: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"(\S+) holds fewest \((\d+)\)"), r"\1 had the fewest shards (\2)"),
    (
        re.compile(r"(\S+) is least loaded \((\S+) of the average\)"),
        # The share is of an average from before the plan, and a plan gives many leases.
        r"\1 had the least to do",
    ),
    (re.compile(r"(\S+) holds (\d+), (\S+) (\d+)"), r"\1 had \2 shards, \3 only \4"),
    (
        re.compile(r"(\w+): (\S+) has (\S+) of the average, (\S+) (\S+); this lease (\S+)"),
        r"to even out the load (\1): \2 had \3 of the average, \4 \5, and this shard makes up \6",
    ),
    (
        re.compile(r"child of a shard it has just ended"),
        r"it had just read this shard's parent to the end",
    ),
    (re.compile(r"waits for parent (.+)"), r"its parent \1 must be read to the end first"),
    (re.compile(r"no worker is running"), r"no worker is running yet"),
    (re.compile(r"no worker has room"), r"every worker has as many shards as it may have"),
    (
        re.compile(r"(\S+) has no room for more \((\d+) at most\)"),
        r"\1 has as many shards as it may have (\2)",
    ),
    (re.compile(r"(\S+) acquires (\d+) per turn"), r"\1 takes \2 shards at a time"),
    (re.compile(r"slot takes no leases"), r"that worker was about to end"),
    (re.compile(r"the lease changed meanwhile"), r"somebody else had written the lease first"),
    (re.compile(r"(\d+) slots wanted"), r"the fleet needs \1 workers"),
    (re.compile(r"(\d+) worker slots wanted"), r"the fleet needs \1 workers"),
    (
        re.compile(r"(\d+) slots for (\d+) unfinished leases, (\d+) wanted"),
        r"\2 shards need \3 workers and there were \1",
    ),
    (
        re.compile(r"the lease table is empty and the initial listing shows the shard"),
        r"the fleet was new and the stream has this shard",
    ),
    (
        re.compile(r"its parent's lease is at SHARD_END and nobody created the child"),
        r"its parent was read to the end, and this shard follows",
    ),
    (
        re.compile(r"others have been read and no lease leads to this shard: its lease was lost"),
        r"it had one that somebody deleted",
    ),
    (
        re.compile(r"its sibling's lease has been read, so this one was lost, not new"),
        r"it had one that somebody deleted, for the other half of its parent has been read",
    ),
)
_TEMPLATES = {
    Happening.CREATED: "The manager made a lease for it{reason}.",
    Happening.APPEARED: "A lease for it was found{reason}.",
    Happening.ASSIGNED: "Nobody had it, so {worker} was given it{reason}.",
    Happening.TAKEN_OVER: "{before} was lost (it had stopped renewing), so {worker} was given it"
    "{reason}.",
    Happening.MOVED: "It was taken from {before} and given to {worker}{reason}.",
    Happening.HANDOVER: "{before} was asked to finish its batch and hand it over to {worker}"
    "{reason}.",
    Happening.FORCED: "{worker} has it without waiting any longer{reason}.",
    Happening.WOKEN: "It slept and is to be read again{reason}.",
    Happening.REFUSED: "{worker} was to be given it, but it was too late{reason}.",
    Happening.TAKEN: "{worker} has it now, before {before}{reason}.",
    Happening.RELEASED: "Nobody has it any more{reason}.",
    Happening.FINISHED: "{worker} read it to its end{reason}.",
    Happening.DELETED: "Its lease was deleted{reason}.",
    Happening.VANISHED: "Its lease is gone, and the manager did not delete it{reason}.",
    Happening.WAITS: "Nobody has it{reason}.",
    Happening.STAYS: "Its lease is kept although the shard is read to its end{reason}.",
    Happening.LISTING: "No lease could be made from the list of shards{reason}.",
    Happening.SIZED: "The fleet was sized{reason}.",
    Happening.REGIME: "The fleet goes on otherwise{reason}.",
    Happening.SLOT_STARTED: "{worker} was started{reason}.",
    Happening.SLOT_RESTARTED: "{worker} was started again{reason}.",
    Happening.SLOT_DRAINED: "{worker} was asked to hand over its shards and end{reason}.",
    Happening.SLOT_SILENT: "{worker} gave no sign of life, so its execution was examined{reason}.",
    Happening.SLOT_FAILED: "{worker} could not be looked after{reason}.",
}


def plain_reason(reason: str) -> str:
    """Return a planner's reason in plain words, empty when there is nothing left to say."""
    text = _SAID.sub("", reason)
    for pattern, words in _REASONS:
        if pattern.fullmatch(text):
            return pattern.sub(words, text)
    return text


def sentence(entry: Entry) -> str:
    """Return what happened as a sentence about the entry's subject, which is called "it"."""
    reason = plain_reason(entry.reason)
    if entry.worker_id and reason.startswith(f"{entry.worker_id} "):
        reason = f"that worker {reason.removeprefix(f'{entry.worker_id} ')}"
    template = _TEMPLATES[entry.what]
    if entry.what is Happening.APPEARED and entry.worker_id:
        template = "{worker} has it, with a new lease{reason}."
    text = template.format(
        worker=entry.worker_id or _somebody(entry),
        before=entry.before or ("nobody" if entry.what is Happening.TAKEN else "another worker"),
        reason=f": {reason}" if reason else "",
    )
    return text if entry.worker_id or entry.before else f"{text[0].upper()}{text[1:]}"


def about(entry: Entry) -> str:
    """Return the sentence with the name of its subject, for a story of several."""
    if entry.subject in (FLEET, entry.worker_id) or entry.what.startswith("SLOT_"):
        return sentence(entry)
    return f"{entry.subject}: {sentence(entry)}"


def _somebody(entry: Entry) -> str:
    return f"Slot {entry.subject}" if entry.what.startswith("SLOT_") else "Somebody"
