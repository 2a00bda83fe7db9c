"""
Why things were decided: one class per reason, its facts as fields, and how each is told.

It is one idea: whoever plans gives a reason by its facts, nobody reads a sentence, and a reason is
told in one place, in words and as JSON. So this is at the bottom: it imports none of the planners.
"It" is the lease or the slot that a reason is about, "that worker" the one that the decision names.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from string import Formatter
from typing import Any, ClassVar

from shardfleet.domain.item_size import value_bytes
from shardfleet.values import dataclass

REASON_MOST = 300  # characters of a quotation: an error of the SDK may be a page
REASON_BYTES_MOST = 4 * REASON_MOST  # of a reason in a document
KIND = "is"  # where its JSON names the class of a reason


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
                return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            case _:
                return f"{value} {spec}" if value == 1 else f"{value} {spec}s"


_WORDING = _Wording()
_UNTOLD = "for a reason that only another version can tell"
_BY_NAME: dict[str, type[Reason]] = {}


@dataclass(frozen=True)
class Reason:
    """
    Why something was decided, or is as it is; with values of JSON, and tuples of text.

    Each says in its ``words`` how it is told, by its facts, to somebody who has read nothing.
    """

    _words: ClassVar[str]

    def __init_subclass__(cls, *, words: str) -> None:
        """Learn the words of another reason."""
        cls._words = words
        _BY_NAME[cls.__name__] = cls

    def __str__(self) -> str:
        """Return it in words; a fact that somebody has changed in a document is left out."""
        try:
            return _WORDING.vformat(self._words, (), vars(self))
        except (TypeError, ValueError, OverflowError, OSError):
            return _UNTOLD


@dataclass(frozen=True)
class Quoted(Reason, words="{text}"):
    """What somebody else said."""

    text: str


# --- who gets which lease


@dataclass(frozen=True)
class HoldsFewest(Reason, words="that worker had the fewest shards ({held})"):
    """The worker with fewest leases gets it."""

    held: int


@dataclass(frozen=True)
class LeastLoaded(
    Reason, words="that worker had the least to do ({percent}% of the average before)"
):
    """The worker with the least load gets it; per cent of the average before the plan."""

    percent: int


@dataclass(frozen=True)
class OwnerEnds(Reason, words="{owner} is to end, and {choice}"):
    """Its owner is to end, and somebody else was chosen."""

    owner: str
    choice: Reason


class TookWhatWasFree(Reason, words="it was free, and that worker had room"):
    """A greedy worker found it free."""


class ChildOfEnded(Reason, words="that worker had just read this shard's parent to the end"):
    """A greedy worker goes on with a child."""


@dataclass(frozen=True)
class HoldsMore(Reason, words="{donor} had {held} shards, {receiver} only {fewer}"):
    """One worker has more leases than another."""

    donor: str
    held: int
    receiver: str
    fewer: int


_UNEVEN = (
    "to even out the load ({metric}): {donor} had {percent}% of the average, {receiver} "
    "{less_percent}%"
)


@dataclass(frozen=True)
class LoadedMore(Reason, words=_UNEVEN):
    """One worker has more load than another; per cent of the average."""

    metric: str
    donor: str
    percent: int
    receiver: str
    less_percent: int


@dataclass(frozen=True)
class MovedToEvenOut(LoadedMore, words=_UNEVEN + ", and this shard makes up {lease_percent}%"):
    """A lease of so much of the average is moved."""

    lease_percent: int


@dataclass(frozen=True)
class ExchangedToEvenOut(LoadedMore, words=_UNEVEN + ", and this shard was exchanged for {other}"):
    """Two leases are exchanged."""

    other: str


class NoWorkerRuns(Reason, words="no worker is running yet"):
    """There is nobody to have it."""


class KclLeads(Reason, words="the leader of a KCL 3 gives out the leases"):
    """Our manager waits for it."""


class AllStoodStill(Reason, words="all workers have let shards expire, so each keeps its own"):
    """Its owner gets it back."""


class NoWorkerHasRoom(Reason, words="every worker has as many shards as it may have"):
    """Every worker is full."""


@dataclass(frozen=True)
class WorkerIsFull(Reason, words="{worker_id} has as many shards as it may have ({most})"):
    """A greedy worker is full."""

    worker_id: str
    most: int


@dataclass(frozen=True)
class WorkerTakesFew(Reason, words="{worker_id} takes {most:shard} at a time"):
    """A greedy worker takes no more in one turn."""

    worker_id: str
    most: int


@dataclass(frozen=True)
class WaitsForParents(Reason, words="its parent {parents:and} must be read to the end first"):
    """Its parents are not read to their ends."""

    parents: tuple[str, ...]


class PausesUnreadable(Reason, words="whether somebody has paused it cannot be read"):
    """The document of the pauses cannot be read, and nobody has the lease."""


@dataclass(frozen=True)
class ParentUnreadable(Reason, words="its parent {parent} cannot be read"):
    """Nobody can read the lease of its parent."""

    parent: str


@dataclass(frozen=True)
class ParentHeldUp(Reason, words="its parent {parent} waits for one that cannot be read"):
    """Its parent waits for one whose lease nobody can read."""

    parent: str


class SlotEnds(Reason, words="that worker was about to end"):
    """The slot takes no leases any more."""


class LeaseChanged(Reason, words="somebody else had written the lease first"):
    """The condition of the write did not hold."""


@dataclass(frozen=True)
class NotLetGo(Reason, words="{owner} had not let go after {waited_ms:seconds}"):
    """The old owner did not hand over in time."""

    owner: str
    waited_ms: int


# --- which leases there are


class EmptyTable(Reason, words="the fleet was new and the stream has this shard"):
    """The lease table is empty and the initial listing shows the shard."""


class NoLeasedRelative(Reason, words="it is open, and none that it descends from has a lease"):
    """An open shard of which no ancestor has a lease."""


class OldestOfItsLine(
    Reason, words="it is the oldest shard of a line without leases that is to be read"
):
    """The oldest listed ancestor of an open shard without a lease."""


class OtherParent(Reason, words="it is the other parent of a merge whose first parent is covered"):
    """The other parent of a merge whose first parent is covered."""


class ChildOfFinished(Reason, words="its parent was read to the end, and this shard follows"):
    """Its parent's lease is at SHARD_END and nobody created the child."""


class HoleBesideSibling(
    Reason, words="it had one that somebody deleted, for the other half of its parent has been read"
):
    """Its sibling's lease has been read, so this one was lost, not new."""


class LostAhead(
    Reason, words="it had one that somebody deleted, and a shard behind it has one that is to wait"
):
    """A shard that descends from it has a lease that has not begun, and would not wait for it."""


class LeaseLostUnseen(Reason, words="it had one that somebody deleted"):
    """Others have been read and no lease leads to this shard: its lease was lost."""


class AwaitedAtMerge(
    Reason,
    words="nothing more of it can be read, and who reads the other parent of its merge waits for "
    "its lease",
):
    """Java's worker ends a merge's parent only once the other one has a lease, too."""


class NothingListed(Reason, words="the listing shows no shard at all: nothing is changed"):
    """The listing is empty."""


@dataclass(frozen=True)
class ListedMidReshard(
    Reason,
    words="the listing shows open children of open parents ({children:list}): it was read in the "
    "middle of a reshard, nothing is changed",
):
    """The listing shows open children of open parents."""

    children: tuple[str, ...]


@dataclass(frozen=True)
class ListingUntiled(
    Reason,
    words="the initial listing at {kind} ({shards} shards) does not cover the hash key space "
    "exactly: nothing is created, list again",
):
    """The initial listing does not cover the hash key space exactly."""

    kind: str
    shards: int


@dataclass(frozen=True)
class ChildrenStarted(
    Reason, words="finished, its parents are gone and its children {children:list} have started"
):
    """A finished lease is deleted: its children have begun."""

    children: tuple[str, ...]


class AgedOut(
    Reason, words="finished, its parents are gone and its shard has aged out of the stream"
):
    """A finished lease is deleted: its shard has left the stream."""


class Unlisted(Reason, words="unfinished, though its shard is no longer listed"):
    """An unfinished lease stays without its shard."""


@dataclass(frozen=True)
class ParentStays(Reason, words="the lease of its parent {parent} is still there"):
    """A finished lease stays for its parent's."""

    parent: str


class ChildrenUnknown(Reason, words="its children are unknown"):
    """A finished lease stays: nobody knows what follows."""


@dataclass(frozen=True)
class ChildWithoutLease(Reason, words="its child {child} has no lease"):
    """A finished lease stays for a child without a lease."""

    child: str


@dataclass(frozen=True)
class ChildNotStarted(Reason, words="its child {child} has not started"):
    """A finished lease stays for a child that has read nothing."""

    child: str


# --- a shard that the service does not know


class ListedStill(Reason, words="not found, though it is listed"):
    """It waits: the listing shows it."""


class ListingIncomplete(Reason, words="not found, and the listing shows no whole stream"):
    """It waits: the listing shows no whole stream."""


class SecondListingAwaited(
    Reason, words="not found and not listed for once; a second listing is awaited"
):
    """It waits: the listing does not show it, for once."""


class NeverListed(
    Reason,
    words="not found, and newer than every shard that the stream lists: it was never one of them",
):
    """It is given back: the lease is not this stream's."""


class MayHaveRecords(
    Reason,
    words="not found and not listed, before its records can have expired; it ends, as a loss, one "
    "retention after it was missed first",
):
    """It waits: its records cannot have expired yet."""


@dataclass(frozen=True)
class PersonDecided(Reason, words="{person} decided that it is over"):
    """It is over: somebody said so."""

    person: str


class OlderThanRetention(Reason, words="all that was known of it is older than the retention"):
    """It is over: all that was known of it has expired."""


class MissedForRetention(Reason, words="it was not found for a whole retention"):
    """It is over, as a loss."""


# --- pauses and sleep


@dataclass(frozen=True)
class Pause(Reason, words="paused by {by} since {since_ms:instant}{reason:then}"):
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
class Asleep(
    Reason, words="asleep since {since_ms:instant}: {worker_id} found nothing more to read"
):
    """There is nothing to read since then, epoch milliseconds."""

    since_ms: int
    worker_id: str


@dataclass(frozen=True)
class OtherApplication(
    Reason, words="{owner} shares the lease table, and would take a lease that nobody renews"
):
    """Nothing may sleep."""

    owner: str


class LeaseGone(Reason, words="its lease is gone"):
    """What slept has no lease any more."""


class ReadToItsEnd(Reason, words="it is finished"):
    """What slept is finished."""


@dataclass(frozen=True)
class OwnerHasIt(Reason, words="{owner} has it"):
    """What slept is read again already."""

    owner: str


@dataclass(frozen=True)
class PositionChanged(Reason, words="its position is {checkpoint}, no longer {done}"):
    """What slept was rewound, or read by somebody else."""

    checkpoint: str
    done: str


class RecordsCame(Reason, words="records came"):
    """A look found records."""


class LeftItsTip(Reason, words="it is no longer at its tip"):
    """A look found no records, but not the tip either."""


class ShardClosed(Reason, words="it is closed: its end is to be read"):
    """A look found an end."""


class ShardUnknown(Reason, words="the stream no longer has it"):
    """A look was told that there is no such shard."""


class PositionExpired(Reason, words="its position is older than the retention"):
    """A look was told that the records from there on have expired."""


@dataclass(frozen=True)
class IteratorTooOld(Reason, words="its iterator was too old, {times:time} in a row"):
    """Looks in a row came too late."""

    times: int


@dataclass(frozen=True)
class LooksRefused(Reason, words="it could not be looked at, {times:time} in a row"):
    """Looks in a row got no answer."""

    times: int


# --- how many slots, and what is done about each


class NothingToRead(Reason, words="nothing to read"):
    """No slot is needed."""


@dataclass(frozen=True)
class LeasesToRead(Reason, words="{leases:lease} to read, {per_slot} at most in a slot"):
    """So many slots as the leases need places."""

    leases: int
    per_slot: int


@dataclass(frozen=True)
class LoadToCarry(
    Reason,
    words="load: {slot_tenths:tenths} slots' worth of work, {target_percent}% aimed at in each",
):
    """So many slots as the load needs; tenths of a slot's time, per cent to be used of it."""

    slot_tenths: int
    target_percent: int


@dataclass(frozen=True)
class TooFarBehind(
    Reason,
    words="lag: {slot_id} is {lag_ms:seconds} behind with {leases:lease}, {lag_most_ms:seconds} "
    "allowed",
):
    """More slots for those that are behind, or at least none less."""

    slot_id: str
    lag_ms: int
    leases: int
    lag_most_ms: int


class CatchingUp(Reason, words="lag: the slots that were added have not caught up yet"):
    """As many slots as there are, for those that were added begin only now."""


@dataclass(frozen=True)
class SlotForEachLease(Reason, words="a slot for each of {leases:lease}"):
    """No more slots than leases."""

    leases: int


@dataclass(frozen=True)
class CappedSize(Reason, words="{why}; at most {most} (max_workers)"):
    """More slots were needed than there may be."""

    why: Reason
    most: int


@dataclass(frozen=True)
class MostSlots(Reason, words="at most {most} (max_workers)"):
    """There may be no more slots."""

    most: int


@dataclass(frozen=True)
class LeastSlots(Reason, words="at least {least} (min_workers)"):
    """There are to be no fewer slots."""

    least: int


@dataclass(frozen=True)
class SurplusToLast(Reason, words="{why}; more until that has lasted"):
    """Fewer slots are needed, but not for long enough yet."""

    why: Reason


_WANTED = "the fleet needs {wanted:worker}: {why}"


@dataclass(frozen=True)
class SlotsWanted(Reason, words=_WANTED):
    """The fleet needs so many slots."""

    wanted: int
    why: Reason


@dataclass(frozen=True)
class SlotsTooMany(SlotsWanted, words="there are {present:worker} and " + _WANTED):
    """There are more slots than the fleet needs."""

    present: int


class NoHeartbeatYet(Reason, words="no heartbeat yet"):
    """A slot was started and has not been heard of."""


@dataclass(frozen=True)
class LeasesExpired(Reason, words="its leases have expired, heartbeat {silence_ms} ms ago"):
    """A slot's leases have expired."""

    silence_ms: int


@dataclass(frozen=True)
class SlotSilent(Reason, words="silent for {silence_ms} ms"):
    """A slot has not been heard of for too long."""

    silence_ms: int


class HandedOver(Reason, words="it has handed over all it had"):
    """A slot that was to leave has no lease left."""


@dataclass(frozen=True)
class HandsOverTooLong(Reason, words="it was to hand over, and still has {leases:shard}"):
    """A slot that was to leave still has leases."""

    leases: int


@dataclass(frozen=True)
class SlotAlive(Reason, words="heartbeat {silence_ms} ms ago"):
    """Nothing is to be done about a slot."""

    silence_ms: int


@dataclass(frozen=True)
class ClosedBeforeHeartbeat(
    Reason, words="execution {execution} closed before its first heartbeat"
):
    """An execution was over before anything was heard of it."""

    execution: str


class ExecutionOver(Reason, words="silent, and its execution is over"):
    """A silent slot holds leases, and no execution of it runs."""


@dataclass(frozen=True)
class StandsIn(Reason, words="{slot_id} stands still, and its execution goes on"):
    """A silent slot has a running execution, and the others have no room for its leases."""

    slot_id: str


@dataclass(frozen=True)
class UpkeepFailed(Reason, words="{task}: {error}"):
    """What was to be done about a slot failed."""

    task: str
    error: str


# --- lag and money


class NoBudget(Reason, words="there is no budget"):
    """Nothing limits what is spent."""


@dataclass(frozen=True)
class BudgetSpent(
    Reason,
    words="{spent_cents:dollars} of {budget_cents:dollars} are spent today, and reading on was not "
    "wanted then",
):
    """The day's budget is gone, and nothing is to be read then."""

    spent_cents: int
    budget_cents: int


@dataclass(frozen=True)
class DayComesTo(
    Reason,
    words="the day comes to {expected_cents:dollars} at this rate, the budget is "
    "{budget_cents:dollars}",
):
    """What the day will have cost at its end."""

    expected_cents: int
    budget_cents: int


_LATE = "a shard is {lag_ms:seconds} behind, the objective is {objective_ms:seconds}"


@dataclass(frozen=True)
class ObjectiveMissed(Reason, words=_LATE):
    """A shard is further behind than it may be."""

    lag_ms: int
    objective_ms: int


@dataclass(frozen=True)
class BudgetGivenUp(ObjectiveMissed, words=_LATE + "; the budget is given up for it: {cost}"):
    """The same, and that is worth more than the budget."""

    cost: Reason


@dataclass(frozen=True)
class RegimeIs(Reason, words="{regime}, {why}"):
    """How eager the fleet is from now on."""

    regime: str
    why: Reason


# --- what others did


class ThereAlready(Reason, words="it was there already when this record of decisions began"):
    """It was so when the manager first looked."""


class MadeByOthers(Reason, words="made by somebody else than the manager"):
    """Neither the manager nor a worker made the lease."""


@dataclass(frozen=True)
class FollowsParents(
    Reason, words="its parent {parents:and} was read to the end, and this shard follows"
):
    """The worker that ended its parents made the lease."""

    parents: tuple[str, ...]


@dataclass(frozen=True)
class WentOnWithChild(
    Reason, words="that worker had read its parent {parents:and} to the end and went on with it"
):
    """The worker that ended its parents took it."""

    parents: tuple[str, ...]


@dataclass(frozen=True)
class FollowedBy(Reason, words="followed by {children:list}"):
    """What comes after a finished shard."""

    children: tuple[str, ...]


class PutBack(Reason, words="its position was put back, so there is something to read again"):
    """A finished lease was rewound."""


class OfAnotherApplication(
    Reason, words="that worker belongs to another application that shares the lease table"
):
    """The new owner is none of ours."""


class TookItself(
    Reason, words="that worker took it by itself, or the manager was cut off before it noted why"
):
    """Nobody noted why the new owner has it."""


@dataclass(frozen=True)
class GaveBack(Reason, words="{worker_id} gave it back"):
    """Its worker gave it up."""

    worker_id: str


class AskedToEnd(GaveBack, words="{worker_id} was asked to end and gave it back"):
    """Its worker was to end."""


class EndedInOrder(GaveBack, words="{worker_id} ended and gave it back"):
    """Its worker has ended."""


class NoWorkerOfOurs(GaveBack, words="{worker_id} is no worker of this fleet (any more)"):
    """Its worker is not known."""


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
    """Read a reason back; what another version has written is told as far as it is known."""
    try:
        kind = _BY_NAME[document[KIND]]
        known = kind.__dataclass_fields__
        return kind(**{name: _fact(value) for name, value in document.items() if name in known})
    except (AttributeError, KeyError, TypeError):
        return Quoted(_UNTOLD)


def _fact(value: Any) -> Any:
    match value:
        case Mapping():
            return reason_of_json(value)
        case list() | tuple():
            return tuple(value)
        case _:
            return value
