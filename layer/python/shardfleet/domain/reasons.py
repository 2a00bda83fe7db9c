"""
Why things were decided: one class per reason, its facts as fields, and how each is told.

It is one idea: whoever plans gives a reason by its facts, nobody reads a sentence, and a reason is
told in one place, in words and as JSON. So this is at the bottom: it imports none of the planners.
"It" is the lease or the slot that a reason is about, "that worker" the one that the decision names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from string import Formatter
from typing import Any

from shardfleet.domain.item_size import value_bytes

REASON_MOST = 300  # characters of a quotation: an error of the SDK may be a page
REASON_BYTES_MOST = 4 * REASON_MOST  # of a reason in a document
KIND = "is"  # where its JSON names the class of a reason


@dataclass(frozen=True)
class Reason:
    """Why something was decided, or is as it is; with values of JSON, and tuples of text."""

    def __str__(self) -> str:
        """Say it in words that somebody understands who has read nothing."""
        return _WORDING.vformat(_WORDS[type(self)], (), vars(self))


@dataclass(frozen=True)
class Quoted(Reason):
    """What somebody else said."""

    text: str


# --- who gets which lease


@dataclass(frozen=True)
class HoldsFewest(Reason):
    """The worker with fewest leases gets it."""

    held: int


@dataclass(frozen=True)
class LeastLoaded(Reason):
    """The worker with the least load gets it; per cent of the average before the plan."""

    percent: int


@dataclass(frozen=True)
class OwnerEnds(Reason):
    """Its owner is to end, and somebody else was chosen."""

    owner: str
    choice: Reason


class TookWhatWasFree(Reason):
    """A greedy worker found it free."""


class ChildOfEnded(Reason):
    """A greedy worker goes on with a child."""


@dataclass(frozen=True)
class HoldsMore(Reason):
    """One worker has more leases than another."""

    donor: str
    held: int
    receiver: str
    fewer: int


@dataclass(frozen=True)
class LoadedMore(Reason):
    """One worker has more load than another; per cent of the average."""

    metric: str
    donor: str
    percent: int
    receiver: str
    less_percent: int


@dataclass(frozen=True)
class MovedToEvenOut(LoadedMore):
    """A lease of so much of the average is moved."""

    lease_percent: int


@dataclass(frozen=True)
class ExchangedToEvenOut(LoadedMore):
    """Two leases are exchanged."""

    other: str


class NoWorkerRuns(Reason):
    """There is nobody to have it."""


class NoWorkerHasRoom(Reason):
    """Every worker is full."""


@dataclass(frozen=True)
class WorkerIsFull(Reason):
    """A greedy worker is full."""

    worker_id: str
    most: int


@dataclass(frozen=True)
class WorkerTakesFew(Reason):
    """A greedy worker takes no more in one turn."""

    worker_id: str
    most: int


@dataclass(frozen=True)
class WaitsForParents(Reason):
    """Its parents are not read to their ends."""

    parents: tuple[str, ...]


@dataclass(frozen=True)
class ParentUnreadable(Reason):
    """Nobody can read the lease of its parent."""

    parent: str


@dataclass(frozen=True)
class ParentHeldUp(Reason):
    """Its parent waits for one whose lease nobody can read."""

    parent: str


class SlotEnds(Reason):
    """The slot takes no leases any more."""


class LeaseChanged(Reason):
    """The condition of the write did not hold."""


@dataclass(frozen=True)
class NotLetGo(Reason):
    """The old owner did not hand over in time."""

    owner: str
    waited_ms: int


# --- which leases there are


class EmptyTable(Reason):
    """The lease table is empty and the initial listing shows the shard."""


class NoLeasedRelative(Reason):
    """An open shard of which no ancestor has a lease."""


class OldestOfItsLine(Reason):
    """The oldest listed ancestor of an open shard without a lease."""


class OtherParent(Reason):
    """The other parent of a merge whose first parent is covered."""


class ChildOfFinished(Reason):
    """Its parent's lease is at SHARD_END and nobody created the child."""


class HoleBesideSibling(Reason):
    """Its sibling's lease has been read, so this one was lost, not new."""


class LeaseLostUnseen(Reason):
    """Others have been read and no lease leads to this shard: its lease was lost."""


class NothingListed(Reason):
    """The listing is empty."""


@dataclass(frozen=True)
class ListedMidReshard(Reason):
    """The listing shows open children of open parents."""

    children: tuple[str, ...]


@dataclass(frozen=True)
class ListingUntiled(Reason):
    """The initial listing does not cover the hash key space exactly."""

    kind: str
    shards: int


@dataclass(frozen=True)
class ChildrenStarted(Reason):
    """A finished lease is deleted: its children have begun."""

    children: tuple[str, ...]


class AgedOut(Reason):
    """A finished lease is deleted: its shard has left the stream."""


class Unlisted(Reason):
    """An unfinished lease stays without its shard."""


@dataclass(frozen=True)
class ParentStays(Reason):
    """A finished lease stays for its parent's."""

    parent: str


class ChildrenUnknown(Reason):
    """A finished lease stays: nobody knows what follows."""


@dataclass(frozen=True)
class ChildWithoutLease(Reason):
    """A finished lease stays for a child without a lease."""

    child: str


@dataclass(frozen=True)
class ChildNotStarted(Reason):
    """A finished lease stays for a child that has read nothing."""

    child: str


# --- a shard that the service does not know


class ListedStill(Reason):
    """It waits: the listing shows it."""


class ListingIncomplete(Reason):
    """It waits: the listing shows no whole stream."""


class SecondListingAwaited(Reason):
    """It waits: the listing does not show it, for once."""


class MayHaveRecords(Reason):
    """It waits: its records cannot have expired yet."""


@dataclass(frozen=True)
class PersonDecided(Reason):
    """It is over: somebody said so."""

    person: str


class OlderThanRetention(Reason):
    """It is over: all that was known of it has expired."""


class MissedForRetention(Reason):
    """It is over, as a loss."""


# --- pauses and sleep


@dataclass(frozen=True)
class Pause(Reason):
    """
    Who paused something, when, and what for.

    Attributes:
        by: a person, or a command of theirs.
        since_ms: epoch milliseconds.
        reason: for other people; may be empty.

    """

    by: str
    since_ms: int
    reason: str = ""


@dataclass(frozen=True)
class Asleep(Reason):
    """There is nothing to read since then, epoch milliseconds."""

    since_ms: int
    worker_id: str


@dataclass(frozen=True)
class OtherApplication(Reason):
    """Nothing may sleep."""

    owner: str


class LeaseGone(Reason):
    """What slept has no lease any more."""


class ReadToItsEnd(Reason):
    """What slept is finished."""


@dataclass(frozen=True)
class OwnerHasIt(Reason):
    """What slept is read again already."""

    owner: str


@dataclass(frozen=True)
class PositionChanged(Reason):
    """What slept was rewound, or read by somebody else."""

    checkpoint: str
    done: str


class RecordsCame(Reason):
    """A look found records."""


class LeftItsTip(Reason):
    """A look found no records, but not the tip either."""


class ShardClosed(Reason):
    """A look found an end."""


class ShardUnknown(Reason):
    """A look was told that there is no such shard."""


class PositionExpired(Reason):
    """A look was told that the records from there on have expired."""


@dataclass(frozen=True)
class IteratorTooOld(Reason):
    """Looks in a row came too late."""

    times: int


@dataclass(frozen=True)
class LooksRefused(Reason):
    """Looks in a row got no answer."""

    times: int


# --- how many slots, and what is done about each


class NothingToRead(Reason):
    """No slot is needed."""


@dataclass(frozen=True)
class LeasesToRead(Reason):
    """So many slots as the leases need places."""

    leases: int
    per_slot: int


@dataclass(frozen=True)
class LoadToCarry(Reason):
    """So many slots as the load needs; tenths of a slot's time, per cent to be used of it."""

    slot_tenths: int
    target_percent: int


@dataclass(frozen=True)
class TooFarBehind(Reason):
    """More slots for those that are behind."""

    slot_id: str
    lag_ms: int
    leases: int
    lag_most_ms: int


class CatchingUp(Reason):
    """As many slots as there are, for those that were added begin only now."""


@dataclass(frozen=True)
class SlotForEachLease(Reason):
    """No more slots than leases."""

    leases: int


@dataclass(frozen=True)
class CappedSize(Reason):
    """More slots were needed than there may be."""

    why: Reason
    most: int


@dataclass(frozen=True)
class MostSlots(Reason):
    """There may be no more slots."""

    most: int


@dataclass(frozen=True)
class LeastSlots(Reason):
    """There are to be no fewer slots."""

    least: int


@dataclass(frozen=True)
class SurplusToLast(Reason):
    """Fewer slots are needed, but not for long enough yet."""

    why: Reason


@dataclass(frozen=True)
class SlotsWanted(Reason):
    """The fleet needs so many slots."""

    wanted: int
    why: Reason


@dataclass(frozen=True)
class SlotsTooMany(SlotsWanted):
    """There are more slots than the fleet needs."""

    present: int


class NoHeartbeatYet(Reason):
    """A slot was started and has not been heard of."""


@dataclass(frozen=True)
class LeasesExpired(Reason):
    """A slot's leases have expired."""

    silence_ms: int


@dataclass(frozen=True)
class SlotSilent(Reason):
    """A slot has not been heard of for too long."""

    silence_ms: int


class HandedOver(Reason):
    """A slot that was to leave has no lease left."""


@dataclass(frozen=True)
class HandsOverTooLong(Reason):
    """A slot that was to leave still has leases."""

    leases: int


@dataclass(frozen=True)
class SlotAlive(Reason):
    """Nothing is to be done about a slot."""

    silence_ms: int


@dataclass(frozen=True)
class ClosedBeforeHeartbeat(Reason):
    """An execution was over before anything was heard of it."""

    execution: str


class ExecutionOver(Reason):
    """A silent slot holds leases, and no execution of it runs."""


@dataclass(frozen=True)
class UpkeepFailed(Reason):
    """What was to be done about a slot failed."""

    task: str
    error: str


# --- lag and money


class NoBudget(Reason):
    """Nothing limits what is spent."""


@dataclass(frozen=True)
class BudgetSpent(Reason):
    """The day's budget is gone, and nothing is to be read then."""

    spent_cents: int
    budget_cents: int


@dataclass(frozen=True)
class DayComesTo(Reason):
    """What the day will have cost at its end."""

    expected_cents: int
    budget_cents: int


@dataclass(frozen=True)
class ObjectiveMissed(Reason):
    """A shard is further behind than it may be."""

    lag_ms: int
    objective_ms: int


@dataclass(frozen=True)
class BudgetGivenUp(ObjectiveMissed):
    """The same, and that is worth more than the budget."""

    cost: Reason


@dataclass(frozen=True)
class RegimeIs(Reason):
    """How eager the fleet is from now on."""

    regime: str
    why: Reason


# --- what others did


class ThereAlready(Reason):
    """It was so when the manager first looked."""


class MadeByOthers(Reason):
    """Neither the manager nor a worker made the lease."""


@dataclass(frozen=True)
class FollowsParents(Reason):
    """The worker that ended its parents made the lease."""

    parents: tuple[str, ...]


@dataclass(frozen=True)
class WentOnWithChild(Reason):
    """The worker that ended its parents took it."""

    parents: tuple[str, ...]


@dataclass(frozen=True)
class FollowedBy(Reason):
    """What comes after a finished shard."""

    children: tuple[str, ...]


class PutBack(Reason):
    """A finished lease was rewound."""


class OfAnotherApplication(Reason):
    """The new owner is none of ours."""


class TookItself(Reason):
    """Nobody noted why the new owner has it."""


@dataclass(frozen=True)
class GaveBack(Reason):
    """Its worker gave it up."""

    worker_id: str


class AskedToEnd(GaveBack):
    """Its worker was to end."""


class EndedInOrder(GaveBack):
    """Its worker has ended."""


class NoWorkerOfOurs(GaveBack):
    """Its worker is not known."""


_UNEVEN = (
    "to even out the load ({metric}): {donor} had {percent}% of the average, {receiver} "
    "{less_percent}%, and this shard "
)
_LATE = "a shard is {lag_ms:seconds} behind, the objective is {objective_ms:seconds}"
_WANTED = "the fleet needs {wanted:worker}: {why}"
_WORDS: Mapping[type[Reason], str] = {
    Quoted: "{text}",
    HoldsFewest: "that worker had the fewest shards ({held})",
    LeastLoaded: "that worker had the least to do ({percent}% of the average before)",
    OwnerEnds: "{owner} is to end, and {choice}",
    TookWhatWasFree: "it was free, and that worker had room",
    ChildOfEnded: "that worker had just read this shard's parent to the end",
    HoldsMore: "{donor} had {held} shards, {receiver} only {fewer}",
    MovedToEvenOut: _UNEVEN + "makes up {lease_percent}%",
    ExchangedToEvenOut: _UNEVEN + "was exchanged for {other}",
    NoWorkerRuns: "no worker is running yet",
    NoWorkerHasRoom: "every worker has as many shards as it may have",
    WorkerIsFull: "{worker_id} has as many shards as it may have ({most})",
    WorkerTakesFew: "{worker_id} takes {most:shard} at a time",
    WaitsForParents: "its parent {parents:and} must be read to the end first",
    ParentUnreadable: "its parent {parent} cannot be read",
    ParentHeldUp: "its parent {parent} waits for one that cannot be read",
    SlotEnds: "that worker was about to end",
    LeaseChanged: "somebody else had written the lease first",
    NotLetGo: "{owner} had not let go after {waited_ms:seconds}",
    EmptyTable: "the fleet was new and the stream has this shard",
    NoLeasedRelative: "it is open, and none that it descends from has a lease",
    OldestOfItsLine: "it is the oldest listed ancestor of an open shard without a lease",
    OtherParent: "it is the other parent of a merge whose first parent is covered",
    ChildOfFinished: "its parent was read to the end, and this shard follows",
    HoleBesideSibling: (
        "it had one that somebody deleted, for the other half of its parent has been read"
    ),
    LeaseLostUnseen: "it had one that somebody deleted",
    NothingListed: "the listing shows no shard at all: nothing is changed",
    ListedMidReshard: (
        "the listing shows open children of open parents ({children:list}): it was read in the "
        "middle of a reshard, nothing is changed"
    ),
    ListingUntiled: (
        "the initial listing at {kind} ({shards} shards) does not cover the hash key space "
        "exactly: nothing is created, list again"
    ),
    ChildrenStarted: (
        "finished, its parents are gone and its children {children:list} have started"
    ),
    AgedOut: "finished, its parents are gone and its shard has aged out of the stream",
    Unlisted: "unfinished, though its shard is no longer listed",
    ParentStays: "the lease of its parent {parent} is still there",
    ChildrenUnknown: "its children are unknown",
    ChildWithoutLease: "its child {child} has no lease",
    ChildNotStarted: "its child {child} has not started",
    ListedStill: "not found, though it is listed",
    ListingIncomplete: "not found, and the listing shows no whole stream",
    SecondListingAwaited: "not found and not listed for once; a second listing is awaited",
    MayHaveRecords: (
        "not found and not listed, before its records can have expired; it ends, as a loss, one "
        "retention after it was missed first"
    ),
    PersonDecided: "{person} decided that it is over",
    OlderThanRetention: "all that was known of it is older than the retention",
    MissedForRetention: "it was not found for a whole retention",
    Pause: "paused by {by} since {since_ms:instant}{reason:then}",
    Asleep: "asleep since {since_ms:instant}: {worker_id} found nothing more to read",
    OtherApplication: ("{owner} shares the lease table, and would take a lease that nobody renews"),
    LeaseGone: "its lease is gone",
    ReadToItsEnd: "it is finished",
    OwnerHasIt: "{owner} has it",
    PositionChanged: "its position is {checkpoint}, no longer {done}",
    RecordsCame: "records came",
    LeftItsTip: "it is no longer at its tip",
    ShardClosed: "it is closed: its end is to be read",
    ShardUnknown: "the stream no longer has it",
    PositionExpired: "its position is older than the retention",
    IteratorTooOld: "its iterator was too old, {times:time} in a row",
    LooksRefused: "it could not be looked at, {times:time} in a row",
    NothingToRead: "nothing to read",
    LeasesToRead: "{leases:lease} to read, {per_slot} at most in a slot",
    LoadToCarry: (
        "load: {slot_tenths:tenths} slots' worth of work, {target_percent}% aimed at in each"
    ),
    TooFarBehind: (
        "lag: {slot_id} is {lag_ms:seconds} behind with {leases:lease}, {lag_most_ms:seconds} "
        "allowed"
    ),
    CatchingUp: "lag: the slots that were added have not caught up yet",
    SlotForEachLease: "a slot for each of {leases:lease}",
    CappedSize: "{why}; at most {most} (workers_max)",
    MostSlots: "at most {most} (workers_max)",
    LeastSlots: "at least {least} (workers_min)",
    SurplusToLast: "{why}; more until that has lasted",
    SlotsWanted: _WANTED,
    SlotsTooMany: "there are {present:worker} and " + _WANTED,
    NoHeartbeatYet: "no heartbeat yet",
    LeasesExpired: "its leases have expired, heartbeat {silence_ms} ms ago",
    SlotSilent: "silent for {silence_ms} ms",
    HandedOver: "it has handed over all it had",
    HandsOverTooLong: "it was to hand over, and still has {leases:shard}",
    SlotAlive: "heartbeat {silence_ms} ms ago",
    ClosedBeforeHeartbeat: "execution {execution} closed before its first heartbeat",
    ExecutionOver: "silent, and its execution is over",
    UpkeepFailed: "{task}: {error}",
    NoBudget: "there is no budget",
    BudgetSpent: (
        "{spent_cents:dollars} of {budget_cents:dollars} are spent today, and reading on was not "
        "wanted then"
    ),
    DayComesTo: (
        "the day comes to {expected_cents:dollars} at this rate, the budget is "
        "{budget_cents:dollars}"
    ),
    ObjectiveMissed: _LATE,
    BudgetGivenUp: _LATE + "; the budget is given up for it: {cost}",
    RegimeIs: "{regime}, {why}",
    ThereAlready: "it was there already when this record of decisions began",
    MadeByOthers: "made by somebody else than the manager",
    FollowsParents: "its parent {parents:and} was read to the end, and this shard follows",
    WentOnWithChild: "that worker had read its parent {parents:and} to the end and went on with it",
    FollowedBy: "followed by {children:list}",
    PutBack: "its position was put back, so there is something to read again",
    OfAnotherApplication: (
        "that worker belongs to another application that shares the lease table"
    ),
    TookItself: "that worker took it by itself, or the manager was cut off before it noted why",
    GaveBack: "{worker_id} gave it back",
    AskedToEnd: "{worker_id} was asked to end and gave it back",
    EndedInOrder: "{worker_id} ended and gave it back",
    NoWorkerOfOurs: "{worker_id} is no worker of this fleet (any more)",
}
_BY_NAME = {kind.__name__: kind for kind in _WORDS}


class _Wording(Formatter):
    """Says values as a person does; what it does not know is a noun to count."""

    def format_field(self, value: Any, spec: str) -> str:
        match spec:
            case "":
                return str(value)
            case "and":
                return " and ".join(value)
            case "list":
                return ", ".join(value)
            case "then":
                return f": {value}" if value else ""
            case "seconds":
                return f"{value / 1000:.0f} s"
            case "tenths":
                return f"{value / 10:.1f}"
            case "dollars":
                return f"${value / 100:.2f}"
            case "instant":
                return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
            case _:
                return f"{value} {spec}" if value == 1 else f"{value} {spec}s"


_WORDING = _Wording()


def reason_json(reason: Reason) -> dict[str, Any]:
    """Return a reason for a document, or for a program: its class, its facts; bounded in size."""
    facts = {
        name: reason_json(fact) if isinstance(fact, Reason) else fact
        for name, fact in vars(reason).items()
    }
    document = {KIND: type(reason).__name__, **facts}
    if value_bytes(document) <= REASON_BYTES_MOST:
        return document
    return {KIND: Quoted.__name__, "text": str(reason)[:REASON_MOST]}


def reason_of_json(document: Mapping[str, Any]) -> Reason:
    """Read a reason back; what another version has written cannot be told."""
    try:
        facts = {name: _fact(value) for name, value in document.items() if name != KIND}
        return _BY_NAME[document[KIND]](**facts)
    except (AttributeError, KeyError, TypeError):
        return Quoted("for a reason that only another version can tell")


def _fact(value: Any) -> Any:
    match value:
        case Mapping():
            return reason_of_json(value)
        case list() | tuple():
            return tuple(value)
        case _:
            return value
