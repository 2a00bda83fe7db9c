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

from msgspec import Struct
from msgspec.structs import asdict

from shardfleet.domain.item_size import value_bytes

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
            case "instant":
                return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            case _:
                return f"{value} {spec}" if value == 1 else f"{value} {spec}s"


_WORDING = _Wording()
_UNTOLD = "for a reason that only another version can tell"
_BY_NAME: dict[str, type[Reason]] = {}


class Reason(Struct, frozen=True):
    """
    Why something was decided, or is as it is; with values of JSON, and tuples of text.

    Each says in its ``words`` how it is told, by its facts, to somebody who has read nothing.
    """

    _words: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """Learn another reason by its name."""
        _BY_NAME[cls.__name__] = cls

    def __str__(self) -> str:
        """Return it in words; a fact that somebody has changed in a document is left out."""
        try:
            return _WORDING.vformat(self._words, (), asdict(self))
        except (TypeError, ValueError, OverflowError, OSError):
            return _UNTOLD


class Quoted(Reason, frozen=True):
    """What somebody else said."""

    _words = "{text}"

    text: str


# --- who gets which lease


class HoldsFewest(Reason, frozen=True):
    """The worker with fewest leases gets it."""

    _words = "that worker had the fewest shards ({held})"

    held: int


class LeastLoaded(Reason, frozen=True):
    """The worker with the least load gets it; per cent of the average before the plan."""

    _words = "that worker had the least to do ({percent}% of the average before)"

    percent: int


class OwnerEnds(Reason, frozen=True):
    """Its owner is to end, and somebody else was chosen."""

    _words = "{owner} is to end, and {choice}"

    owner: str
    choice: Reason


class TookWhatWasFree(Reason, frozen=True):
    """A greedy worker found it free."""

    _words = "it was free, and that worker had room"


class ChildOfEnded(Reason, frozen=True):
    """A greedy worker goes on with a child."""

    _words = "that worker had just read this shard's parent to the end"


class HoldsMore(Reason, frozen=True):
    """One worker has more leases than another."""

    _words = "{donor} had {held} shards, {receiver} only {fewer}"

    donor: str
    held: int
    receiver: str
    fewer: int


_UNEVEN = (
    "to even out the load ({metric}): {donor} had {percent}% of the average, {receiver} "
    "{less_percent}%"
)


class LoadedMore(Reason, frozen=True):
    """One worker has more load than another; per cent of the average."""

    _words = _UNEVEN

    metric: str
    donor: str
    percent: int
    receiver: str
    less_percent: int


class MovedToEvenOut(LoadedMore, frozen=True):
    """A lease of so much of the average is moved."""

    _words = _UNEVEN + ", and this shard makes up {lease_percent}%"

    lease_percent: int


class ExchangedToEvenOut(LoadedMore, frozen=True):
    """Two leases are exchanged."""

    _words = _UNEVEN + ", and this shard was exchanged for {other}"

    other: str


class NoWorkerRuns(Reason, frozen=True):
    """There is nobody to have it."""

    _words = "no worker is running yet"


class KclLeads(Reason, frozen=True):
    """Our manager waits for it."""

    _words = "the leader of a KCL 3 gives out the leases"


class AllStoodStill(Reason, frozen=True):
    """Its owner gets it back."""

    _words = "all workers have let shards expire, so each keeps its own"


class NoWorkerHasRoom(Reason, frozen=True):
    """Every worker is full."""

    _words = "every worker has as many shards as it may have"


class WorkerIsFull(Reason, frozen=True):
    """A greedy worker is full."""

    _words = "{worker_id} has as many shards as it may have ({most})"

    worker_id: str
    most: int


class WorkerTakesFew(Reason, frozen=True):
    """A greedy worker takes no more in one turn."""

    _words = "{worker_id} takes {most:shard} at a time"

    worker_id: str
    most: int


class WaitsForParents(Reason, frozen=True):
    """Its parents are not read to their ends."""

    _words = "its parent {parents:and} must be read to the end first"

    parents: tuple[str, ...]


class PausesUnreadable(Reason, frozen=True):
    """The document of the pauses cannot be read, and nobody has the lease."""

    _words = "whether somebody has paused it cannot be read"


class ParentUnreadable(Reason, frozen=True):
    """Nobody can read the lease of its parent."""

    _words = "its parent {parent} cannot be read"

    parent: str


class ParentHeldUp(Reason, frozen=True):
    """Its parent waits for one whose lease nobody can read."""

    _words = "its parent {parent} waits for one that cannot be read"

    parent: str


class SlotEnds(Reason, frozen=True):
    """The slot takes no leases any more."""

    _words = "that worker was about to end"


class LeaseChanged(Reason, frozen=True):
    """The condition of the write did not hold."""

    _words = "somebody else had written the lease first"


class NotLetGo(Reason, frozen=True):
    """The old owner did not hand over in time."""

    _words = "{owner} had not let go after {waited_ms:seconds}"

    owner: str
    waited_ms: int


# --- which leases there are


class EmptyTable(Reason, frozen=True):
    """The lease table is empty and the initial listing shows the shard."""

    _words = "the fleet was new and the stream has this shard"


class NoLeasedRelative(Reason, frozen=True):
    """An open shard of which no ancestor has a lease."""

    _words = "it is open, and none that it descends from has a lease"


class OldestOfItsLine(Reason, frozen=True):
    """The oldest listed ancestor of an open shard without a lease."""

    _words = "it is the oldest shard of a line without leases that is to be read"


class OtherParent(Reason, frozen=True):
    """The other parent of a merge whose first parent is covered."""

    _words = "it is the other parent of a merge whose first parent is covered"


class ChildOfFinished(Reason, frozen=True):
    """Its parent's lease is at SHARD_END and nobody created the child."""

    _words = "its parent was read to the end, and this shard follows"


class HoleBesideSibling(Reason, frozen=True):
    """Its sibling's lease has been read, so this one was lost, not new."""

    _words = "it had one that somebody deleted, for the other half of its parent has been read"


class LostAhead(Reason, frozen=True):
    """A shard that descends from it has a lease that has not begun, and would not wait for it."""

    _words = "it had one that somebody deleted, and a shard behind it has one that is to wait"


class LeaseLostUnseen(Reason, frozen=True):
    """Others have been read and no lease leads to this shard: its lease was lost."""

    _words = "it had one that somebody deleted"


class AwaitedAtMerge(Reason, frozen=True):
    """Java's worker ends a merge's parent only once the other one has a lease, too."""

    _words = (
        "nothing more of it can be read, and who reads the other parent of its merge waits for "
        "its lease"
    )


class NothingListed(Reason, frozen=True):
    """The listing is empty."""

    _words = "the listing shows no shard at all: nothing is changed"


class ListedMidReshard(Reason, frozen=True):
    """The listing shows open children of open parents."""

    _words = (
        "the listing shows open children of open parents ({children:list}): it was read in the "
        "middle of a reshard, nothing is changed"
    )

    children: tuple[str, ...]


class ListingUntiled(Reason, frozen=True):
    """The initial listing does not cover the hash key space exactly."""

    _words = (
        "the initial listing at {kind} ({shards} shards) does not cover the hash key space "
        "exactly: nothing is created, list again"
    )

    kind: str
    shards: int


class ChildrenStarted(Reason, frozen=True):
    """A finished lease is deleted: its children have begun."""

    _words = "finished, its parents are gone and its children {children:list} have started"

    children: tuple[str, ...]


class AgedOut(Reason, frozen=True):
    """A finished lease is deleted: its shard has left the stream."""

    _words = "finished, its parents are gone and its shard has aged out of the stream"


class Unlisted(Reason, frozen=True):
    """An unfinished lease stays without its shard."""

    _words = "unfinished, though its shard is no longer listed"


class ParentStays(Reason, frozen=True):
    """A finished lease stays for its parent's."""

    _words = "the lease of its parent {parent} is still there"

    parent: str


class ChildrenUnknown(Reason, frozen=True):
    """A finished lease stays: nobody knows what follows."""

    _words = "its children are unknown"


class ChildWithoutLease(Reason, frozen=True):
    """A finished lease stays for a child without a lease."""

    _words = "its child {child} has no lease"

    child: str


class ChildNotStarted(Reason, frozen=True):
    """A finished lease stays for a child that has read nothing."""

    _words = "its child {child} has not started"

    child: str


# --- a shard that the service does not know


class ListedStill(Reason, frozen=True):
    """It waits: the listing shows it."""

    _words = "not found, though it is listed"


class ListingIncomplete(Reason, frozen=True):
    """It waits: the listing shows no whole stream."""

    _words = "not found, and the listing shows no whole stream"


class SecondListingAwaited(Reason, frozen=True):
    """It waits: the listing does not show it, for once."""

    _words = "not found and not listed for once; a second listing is awaited"


class NeverListed(Reason, frozen=True):
    """It is given back: the lease is not this stream's."""

    _words = "not found, and newer than every shard that the stream lists: it was never one of them"


class MayHaveRecords(Reason, frozen=True):
    """It waits: its records cannot have expired yet."""

    _words = (
        "not found and not listed, before its records can have expired; it ends, as a loss, one "
        "retention after it was missed first"
    )


class PersonDecided(Reason, frozen=True):
    """It is over: somebody said so."""

    _words = "{person} decided that it is over"

    person: str


class OlderThanRetention(Reason, frozen=True):
    """It is over: all that was known of it has expired."""

    _words = "all that was known of it is older than the retention"


class MissedForRetention(Reason, frozen=True):
    """It is over, as a loss."""

    _words = "it was not found for a whole retention"


# --- pauses and sleep


class Pause(Reason, frozen=True):
    """
    Who paused something, when, and what for.

    Attributes:
        by: a person, or a command of theirs.
        since_ms: epoch milliseconds.
        reason: for other people; may be empty.

    """

    _words = "paused by {by} since {since_ms:instant}{reason:then}"

    by: str
    since_ms: int
    reason: str = ""


class Asleep(Reason, frozen=True):
    """There is nothing to read since then, epoch milliseconds."""

    _words = "asleep since {since_ms:instant}: {worker_id} found nothing more to read"

    since_ms: int
    worker_id: str


class OtherApplication(Reason, frozen=True):
    """Nothing may sleep."""

    _words = "{owner} shares the lease table, and would take a lease that nobody renews"

    owner: str


class LeaseGone(Reason, frozen=True):
    """What slept has no lease any more."""

    _words = "its lease is gone"


class ReadToItsEnd(Reason, frozen=True):
    """What slept is finished."""

    _words = "it is finished"


class OwnerHasIt(Reason, frozen=True):
    """What slept is read again already."""

    _words = "{owner} has it"

    owner: str


class PositionChanged(Reason, frozen=True):
    """What slept was rewound, or read by somebody else."""

    _words = "its position is {checkpoint}, no longer {done}"

    checkpoint: str
    done: str


class RecordsCame(Reason, frozen=True):
    """A look found records."""

    _words = "records came"


class LeftItsTip(Reason, frozen=True):
    """A look found no records, but not the tip either."""

    _words = "it is no longer at its tip"


class ShardClosed(Reason, frozen=True):
    """A look found an end."""

    _words = "it is closed: its end is to be read"


class ShardUnknown(Reason, frozen=True):
    """A look was told that there is no such shard."""

    _words = "the stream no longer has it"


class PositionExpired(Reason, frozen=True):
    """A look was told that the records from there on have expired."""

    _words = "its position is older than the retention"


class IteratorTooOld(Reason, frozen=True):
    """Looks in a row came too late."""

    _words = "its iterator was too old, {times:time} in a row"

    times: int


class LooksRefused(Reason, frozen=True):
    """Looks in a row got no answer."""

    _words = "it could not be looked at, {times:time} in a row"

    times: int


# --- how many slots, and what is done about each


class NothingToRead(Reason, frozen=True):
    """No slot is needed."""

    _words = "nothing to read"


class LeasesToRead(Reason, frozen=True):
    """So many slots as the leases need places."""

    _words = "{leases:lease} to read, {per_slot} at most in a slot"

    leases: int
    per_slot: int


class LoadToCarry(Reason, frozen=True):
    """So many slots as the load needs; tenths of a slot's time, per cent to be used of it."""

    _words = "load: {slot_tenths:tenths} slots' worth of work, {target_percent}% aimed at in each"

    slot_tenths: int
    target_percent: int


class TooFarBehind(Reason, frozen=True):
    """More slots for those that are behind, or at least none less."""

    _words = (
        "lag: {slot_id} is {lag_ms:seconds} behind with {leases:lease}, {lag_most_ms:seconds} "
        "allowed"
    )

    slot_id: str
    lag_ms: int
    leases: int
    lag_most_ms: int


class CatchingUp(Reason, frozen=True):
    """As many slots as there are, for those that were added begin only now."""

    _words = "lag: the slots that were added have not caught up yet"


class SlotForEachLease(Reason, frozen=True):
    """No more slots than leases."""

    _words = "a slot for each of {leases:lease}"

    leases: int


class CappedSize(Reason, frozen=True):
    """More slots were needed than there may be."""

    _words = "{why}; at most {most} (max_workers)"

    why: Reason
    most: int


class MostSlots(Reason, frozen=True):
    """There may be no more slots."""

    _words = "at most {most} (max_workers)"

    most: int


class LeastSlots(Reason, frozen=True):
    """There are to be no fewer slots."""

    _words = "at least {least} (min_workers)"

    least: int


class SurplusToLast(Reason, frozen=True):
    """Fewer slots are needed, but not for long enough yet."""

    _words = "{why}; more until that has lasted"

    why: Reason


_WANTED = "the fleet needs {wanted:worker}: {why}"


class SlotsWanted(Reason, frozen=True):
    """The fleet needs so many slots."""

    _words = _WANTED

    wanted: int
    why: Reason


class SlotsTooMany(SlotsWanted, frozen=True):
    """There are more slots than the fleet needs."""

    _words = "there are {present:worker} and " + _WANTED

    present: int


class NoHeartbeatYet(Reason, frozen=True):
    """A slot was started and has not been heard of."""

    _words = "no heartbeat yet"


class LeasesExpired(Reason, frozen=True):
    """A slot's leases have expired."""

    _words = "its leases have expired, heartbeat {silence_ms} ms ago"

    silence_ms: int


class SlotSilent(Reason, frozen=True):
    """A slot has not been heard of for too long."""

    _words = "silent for {silence_ms} ms"

    silence_ms: int


class HeartbeatAhead(Reason, frozen=True):
    """A slot's heartbeat is of a clock that was ahead: it proves nothing."""

    _words = "its heartbeat is dated {ahead_ms} ms ahead"

    ahead_ms: int


class HandedOver(Reason, frozen=True):
    """A slot that was to leave has no lease left."""

    _words = "it has handed over all it had"


class HandsOverTooLong(Reason, frozen=True):
    """A slot that was to leave still has leases."""

    _words = "it was to hand over, and still has {leases:shard}"

    leases: int


class SlotAlive(Reason, frozen=True):
    """Nothing is to be done about a slot."""

    _words = "heartbeat {silence_ms} ms ago"

    silence_ms: int


class ClosedBeforeHeartbeat(Reason, frozen=True):
    """An execution was over before anything was heard of it."""

    _words = "execution {execution} closed before its first heartbeat"

    execution: str


class ExecutionOver(Reason, frozen=True):
    """A silent slot holds leases, and no execution of it runs."""

    _words = "silent, and its execution is over"


class StandsIn(Reason, frozen=True):
    """A silent slot has a running execution, and the others have no room for its leases."""

    _words = "{slot_id} stands still, and its execution goes on"

    slot_id: str


class UpkeepFailed(Reason, frozen=True):
    """What was to be done about a slot failed."""

    _words = "{task}: {error}"

    task: str
    error: str


# --- what others did


class ThereAlready(Reason, frozen=True):
    """It was so when the manager first looked."""

    _words = "it was there already when this record of decisions began"


class MadeByOthers(Reason, frozen=True):
    """Neither the manager nor a worker made the lease."""

    _words = "made by somebody else than the manager"


class FollowsParents(Reason, frozen=True):
    """The worker that ended its parents made the lease."""

    _words = "its parent {parents:and} was read to the end, and this shard follows"

    parents: tuple[str, ...]


class WentOnWithChild(Reason, frozen=True):
    """The worker that ended its parents took it."""

    _words = "that worker had read its parent {parents:and} to the end and went on with it"

    parents: tuple[str, ...]


class FollowedBy(Reason, frozen=True):
    """What comes after a finished shard."""

    _words = "followed by {children:list}"

    children: tuple[str, ...]


class PutBack(Reason, frozen=True):
    """A finished lease was rewound."""

    _words = "its position was put back, so there is something to read again"


class OfAnotherApplication(Reason, frozen=True):
    """The new owner is none of ours."""

    _words = "that worker belongs to another application that shares the lease table"


class TookItself(Reason, frozen=True):
    """Nobody noted why the new owner has it."""

    _words = "that worker took it by itself, or the manager was cut off before it noted why"


class GaveBack(Reason, frozen=True):
    """Its worker gave it up."""

    _words = "{worker_id} gave it back"

    worker_id: str


class AskedToEnd(GaveBack, frozen=True):
    """Its worker was to end."""

    _words = "{worker_id} was asked to end and gave it back"


class EndedInOrder(GaveBack, frozen=True):
    """Its worker has ended."""

    _words = "{worker_id} ended and gave it back"


class NoWorkerOfOurs(GaveBack, frozen=True):
    """Its worker is not known."""

    _words = "{worker_id} is no worker of this fleet (any more)"


def reason_json(reason: Reason) -> dict[str, Any]:
    """Return a reason for a document, or for a program: its class, its facts; bounded in size."""
    facts = {
        name: reason_json(fact) if isinstance(fact, Reason) else fact
        for name, fact in asdict(reason).items()
    }
    document = {KIND: type(reason).__name__, **facts}
    if value_bytes(document) <= REASON_BYTES_MOST:
        return document
    return {KIND: Quoted.__name__, "text": str(reason)[:REASON_MOST]}


def reason_of_json(document: Mapping[str, Any]) -> Reason:
    """Read a reason back; what another version has written is told as far as it is known."""
    try:
        kind = _BY_NAME[document[KIND]]
        known = kind.__struct_fields__
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
