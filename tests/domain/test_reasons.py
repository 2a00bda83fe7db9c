"""Reasons: each class is told in words and as JSON, and read back; nobody reads the words."""

import ast
import json
from pathlib import Path

import pytest

from shardfleet.domain import reasons
from shardfleet.domain.item_size import value_bytes
from shardfleet.domain.reasons import (
    REASON_BYTES_MOST,
    REASON_MOST,
    AgedOut,
    AllStoodStill,
    AskedToEnd,
    Asleep,
    AwaitedAtMerge,
    CappedSize,
    CatchingUp,
    ChildNotStarted,
    ChildOfEnded,
    ChildOfFinished,
    ChildrenStarted,
    ChildrenUnknown,
    ChildWithoutLease,
    ClosedBeforeHeartbeat,
    EmptyTable,
    EndedInOrder,
    ExchangedToEvenOut,
    ExecutionOver,
    FollowedBy,
    FollowsParents,
    GaveBack,
    HandedOver,
    HandsOverTooLong,
    HeartbeatAhead,
    HoldsFewest,
    HoldsMore,
    HoleBesideSibling,
    IteratorTooOld,
    KclLeads,
    LeaseChanged,
    LeaseGone,
    LeaseLostUnseen,
    LeasesExpired,
    LeasesToRead,
    LeastLoaded,
    LeastSlots,
    LeftItsTip,
    ListedMidReshard,
    ListedStill,
    ListingIncomplete,
    ListingUntiled,
    LoadToCarry,
    LooksRefused,
    LostAhead,
    MadeByOthers,
    MayHaveRecords,
    MissedForRetention,
    MostSlots,
    MovedToEvenOut,
    NeverListed,
    NoHeartbeatYet,
    NoLeasedRelative,
    NothingListed,
    NothingToRead,
    NotLetGo,
    NoWorkerHasRoom,
    NoWorkerOfOurs,
    NoWorkerRuns,
    OfAnotherApplication,
    OlderThanRetention,
    OldestOfItsLine,
    OtherApplication,
    OtherParent,
    OwnerEnds,
    OwnerHasIt,
    ParentHeldUp,
    ParentStays,
    ParentUnreadable,
    Pause,
    PausesUnreadable,
    PersonDecided,
    PositionChanged,
    PositionExpired,
    PutBack,
    Quoted,
    ReadToItsEnd,
    Reason,
    RecordsCame,
    SecondListingAwaited,
    ShardClosed,
    ShardUnknown,
    SlotAlive,
    SlotEnds,
    SlotForEachLease,
    SlotSilent,
    SlotsTooMany,
    SlotsWanted,
    StandsIn,
    SurplusToLast,
    ThereAlready,
    TooFarBehind,
    TookItself,
    TookWhatWasFree,
    Unlisted,
    UpkeepFailed,
    WaitsForParents,
    WentOnWithChild,
    WorkerIsFull,
    WorkerTakesFew,
    reason_json,
    reason_of_json,
)

ROOT = Path(__file__).resolve().parents[2]
MORNING_MS = 1_795_240_000_000
TO_READ = LeasesToRead(5, 8)
# Every class has its line here: its facts, and what is said.
EXAMPLES = [
    (Quoted("AccessDenied: no"), "AccessDenied: no"),
    (HoldsFewest(2), "that worker had the fewest shards (2)"),
    (LeastLoaded(40), "that worker had the least to do (40% of the average before)"),
    (OwnerEnds("a", HoldsFewest(0)), "a is to end, and that worker had the fewest shards (0)"),
    (TookWhatWasFree(), "it was free, and that worker had room"),
    (ChildOfEnded(), "that worker had just read this shard's parent to the end"),
    (HoldsMore("a", 5, "b", 3), "a had 5 shards, b only 3"),
    (
        MovedToEvenOut("cpu", "a", 150, "b", 50, 25),
        "to even out the load (cpu): a had 150% of the average, b 50%, and this shard makes up 25%",
    ),
    (
        ExchangedToEvenOut("busy", "a", 150, "b", 50, "7"),
        (
            "to even out the load (busy): a had 150% of the average, b 50%, and this shard was "
            "exchanged for 7"
        ),
    ),
    (KclLeads(), "the leader of a KCL 3 gives out the leases"),
    (NoWorkerRuns(), "no worker is running yet"),
    (AllStoodStill(), "all workers have let shards expire, so each keeps its own"),
    (NoWorkerHasRoom(), "every worker has as many shards as it may have"),
    (WorkerIsFull("a", 2), "a has as many shards as it may have (2)"),
    (WorkerTakesFew("a", 1), "a takes 1 shard at a time"),
    (WaitsForParents(("1", "2")), "its parent 1 and 2 must be read to the end first"),
    (PausesUnreadable(), "whether somebody has paused it cannot be read"),
    (ParentUnreadable("1"), "its parent 1 cannot be read"),
    (ParentHeldUp("1"), "its parent 1 waits for one that cannot be read"),
    (SlotEnds(), "that worker was about to end"),
    (LeaseChanged(), "somebody else had written the lease first"),
    (NotLetGo("a", 30_400), "a had not let go after 30 s"),
    (EmptyTable(), "the fleet was new and the stream has this shard"),
    (NoLeasedRelative(), "it is open, and none that it descends from has a lease"),
    (OldestOfItsLine(), "it is the oldest shard of a line without leases that is to be read"),
    (OtherParent(), "it is the other parent of a merge whose first parent is covered"),
    (ChildOfFinished(), "its parent was read to the end, and this shard follows"),
    (
        HoleBesideSibling(),
        "it had one that somebody deleted, for the other half of its parent has been read",
    ),
    (
        LostAhead(),
        "it had one that somebody deleted, and a shard behind it has one that is to wait",
    ),
    (LeaseLostUnseen(), "it had one that somebody deleted"),
    (
        AwaitedAtMerge(),
        (
            "nothing more of it can be read, and who reads the other parent of its merge waits for "
            "its lease"
        ),
    ),
    (NothingListed(), "the listing shows no shard at all: nothing is changed"),
    (
        ListedMidReshard(("1", "2")),
        (
            "the listing shows open children of open parents (1, 2): it was read in the middle of "
            "a reshard, nothing is changed"
        ),
    ),
    (
        ListingUntiled("LATEST", 1),
        (
            "the initial listing at LATEST (1 shards) does not cover the hash key space exactly: "
            "nothing is created, list again"
        ),
    ),
    (
        ChildrenStarted(("1", "2")),
        "finished, its parents are gone and its children 1, 2 have started",
    ),
    (AgedOut(), "finished, its parents are gone and its shard has aged out of the stream"),
    (Unlisted(), "unfinished, though its shard is no longer listed"),
    (ParentStays("1"), "the lease of its parent 1 is still there"),
    (ChildrenUnknown(), "its children are unknown"),
    (ChildWithoutLease("1"), "its child 1 has no lease"),
    (ChildNotStarted("1"), "its child 1 has not started"),
    (ListedStill(), "not found, though it is listed"),
    (ListingIncomplete(), "not found, and the listing shows no whole stream"),
    (SecondListingAwaited(), "not found and not listed for once; a second listing is awaited"),
    (
        NeverListed(),
        "not found, and newer than every shard that the stream lists: it was never one of them",
    ),
    (
        MayHaveRecords(),
        (
            "not found and not listed, before its records can have expired; it ends, as a loss, "
            "one retention after it was missed first"
        ),
    ),
    (PersonDecided("ann"), "ann decided that it is over"),
    (OlderThanRetention(), "all that was known of it is older than the retention"),
    (MissedForRetention(), "it was not found for a whole retention"),
    (Pause("ann", MORNING_MS), "paused by ann since 2026-11-21T05:46:40Z"),
    (Pause("ann", MORNING_MS, "index"), "paused by ann since 2026-11-21T05:46:40Z: index"),
    (Asleep(MORNING_MS, "a"), "asleep since 2026-11-21T05:46:40Z: a found nothing more to read"),
    (
        OtherApplication("java"),
        "java shares the lease table, and would take a lease that nobody renews",
    ),
    (LeaseGone(), "its lease is gone"),
    (ReadToItsEnd(), "it is finished"),
    (OwnerHasIt("a"), "a has it"),
    (PositionChanged("20", "55:2"), "its position is 20, no longer 55:2"),
    (RecordsCame(), "records came"),
    (LeftItsTip(), "it is no longer at its tip"),
    (ShardClosed(), "it is closed: its end is to be read"),
    (ShardUnknown(), "the stream no longer has it"),
    (PositionExpired(), "its position is older than the retention"),
    (IteratorTooOld(2), "its iterator was too old, 2 times in a row"),
    (LooksRefused(2), "it could not be looked at, 2 times in a row"),
    (NothingToRead(), "nothing to read"),
    (LeasesToRead(17, 8), "17 leases to read, 8 at most in a slot"),
    (LoadToCarry(19, 70), "load: 1.9 slots' worth of work, 70% aimed at in each"),
    (TooFarBehind("s1", 61_000, 1, 60_000), "lag: s1 is 61 s behind with 1 lease, 60 s allowed"),
    (CatchingUp(), "lag: the slots that were added have not caught up yet"),
    (SlotForEachLease(2), "a slot for each of 2 leases"),
    (CappedSize(TO_READ, 2), "5 leases to read, 8 at most in a slot; at most 2 (max_workers)"),
    (MostSlots(2), "at most 2 (max_workers)"),
    (LeastSlots(3), "at least 3 (min_workers)"),
    (SurplusToLast(TO_READ), "5 leases to read, 8 at most in a slot; more until that has lasted"),
    (SlotsWanted(2, LeastSlots(2)), "the fleet needs 2 workers: at least 2 (min_workers)"),
    (
        SlotsTooMany(1, LeastSlots(1), 3),
        "there are 3 workers and the fleet needs 1 worker: at least 1 (min_workers)",
    ),
    (NoHeartbeatYet(), "no heartbeat yet"),
    (LeasesExpired(70), "its leases have expired, heartbeat 70 ms ago"),
    (SlotSilent(70), "silent for 70 ms"),
    (HeartbeatAhead(70), "its heartbeat is dated 70 ms ahead"),
    (HandedOver(), "it has handed over all it had"),
    (HandsOverTooLong(2), "it was to hand over, and still has 2 shards"),
    (SlotAlive(70), "heartbeat 70 ms ago"),
    (ClosedBeforeHeartbeat("f-s1"), "execution f-s1 closed before its first heartbeat"),
    (ExecutionOver(), "silent, and its execution is over"),
    (StandsIn("s0001"), "s0001 stands still, and its execution goes on"),
    (UpkeepFailed("START", "Throttled"), "START: Throttled"),
    (ThereAlready(), "it was there already when this record of decisions began"),
    (MadeByOthers(), "made by somebody else than the manager"),
    (FollowsParents(("1",)), "its parent 1 was read to the end, and this shard follows"),
    (
        WentOnWithChild(("1", "2")),
        "that worker had read its parent 1 and 2 to the end and went on with it",
    ),
    (FollowedBy(("2", "3")), "followed by 2, 3"),
    (PutBack(), "its position was put back, so there is something to read again"),
    (
        OfAnotherApplication(),
        "that worker belongs to another application that shares the lease table",
    ),
    (
        TookItself(),
        "that worker took it by itself, or the manager was cut off before it noted why",
    ),
    (GaveBack("a"), "a gave it back"),
    (AskedToEnd("a"), "a was asked to end and gave it back"),
    (EndedInOrder("a"), "a ended and gave it back"),
    (NoWorkerOfOurs("a"), "a is no worker of this fleet (any more)"),
]


@pytest.mark.parametrize(("reason", "words"), EXAMPLES, ids=lambda each: type(each).__name__)
def test_a_reason_is_told_in_words_and_read_back_from_json(reason, words):
    assert str(reason) == words
    assert reason_of_json(json.loads(json.dumps(reason_json(reason)))) == reason


def test_every_class_of_reason_has_an_example():
    classes = {each for each in vars(reasons).values() if isinstance(each, type)}
    told = {each for each in classes if issubclass(each, Reason) and not _is_a_base(each)}

    assert {type(reason) for reason, _ in EXAMPLES} == told


def _is_a_base(kind):
    """Tell what is never given itself."""
    return kind.__name__ in ("Reason", "LoadedMore")


def test_two_reasons_of_different_classes_are_never_the_same():
    found = [reason for reason, _ in EXAMPLES]

    assert len(set(found)) == len(found)
    assert all(each != object() for each in found)


def test_no_document_grows_by_what_somebody_else_said():
    for text in ("x" * 9_999, "é" * 9_999):
        told = reason_json(UpkeepFailed("START", text))

        assert value_bytes(told) <= REASON_BYTES_MOST + 100
        assert reason_of_json(told) == Quoted(f"START: {text}"[:REASON_MOST])


@pytest.mark.parametrize(
    "document", [{"is": "Teleported", "to": "7"}, {"is": "HoldsFewest"}, "why"]
)
def test_what_another_version_gives_is_no_error(document):
    assert "another version" in str(reason_of_json(document))


# --- nobody reads a reason's text ---


SAYING = ("str", "repr", "format", "sentence", "about")
TEXT = {name for name in dir(str) if not name.startswith("_")} - {"format", "count", "index"}
HOLDING = ("reason", "why")


def is_told(node, names):
    """Tell whether an expression is a reason, or its words; `names` are those that hold one."""
    match node:
        case ast.Attribute(attr=name):
            return name in HOLDING
        case ast.Name(id=name):
            return name in names
        case ast.Call(func=ast.Name(id=name), args=[first, *_]) if name in SAYING:
            return is_told(first, names)
        case ast.Subscript(value=ast.Attribute(attr="reasons") | ast.Name(id="reasons")):
            return True
        case ast.Subscript(value=value):
            return is_told(value, names)
        case ast.IfExp(body=one, orelse=other):
            return is_told(one, names) or is_told(other, names)
        case _:
            return False


def readings(path, tree):
    """Yield each place where code decides by what a reason says."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    seen = set()
    for scope in (*functions, tree):
        names = set(HOLDING)
        for node in ast.walk(scope):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if is_told(value, names):
                    names.add(name)
        for node in ast.walk(scope):
            if node not in seen and reads(node, names):
                seen.add(node)
                yield f"{path}:{node.lineno}: {ast.unparse(node)} reads what a reason says"
        if scope is not tree:
            seen.update(ast.walk(scope))


def reads(node, names):
    """Tell whether a node decides by what a reason says, or takes its words apart."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others):
            by_text = any(isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in ops)
            return by_text and any(is_told(each, names) for each in (left, *others))
        case ast.Attribute(value=value, attr=name):
            return name in TEXT and is_told(value, names)
        case ast.Subscript(value=value, slice=ast.Slice()):
            return is_told(value, names)
        case ast.Call(func=ast.Attribute(attr="match" | "fullmatch" | "search"), args=args):
            return any(is_told(each, names) for each in args)
        case ast.MatchClass(kwd_attrs=words, kwd_patterns=patterns):
            literals = zip(words, patterns, strict=True)
            return any(n in HOLDING and isinstance(p, ast.MatchValue) for n, p in literals)
        case _:
            return False


def test_no_code_reads_what_a_reason_says():
    found = []
    folders = ("layer/python/shardfleet", "tools/shardfleet_ops", "tools/shardfleet_testkit")
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        # The embedded AWS gives its reasons as text; ours are told by their own module.
        if path.name != "reasons.py":
            found += readings(path.relative_to(ROOT), ast.parse(path.read_text("utf-8")))

    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "sizing.reason.startswith('lag: ')",
        "reason.startswith(_LAG)",
        "if place.reason == FIRST_LOOK: pass",
        "'unowned' in entry.reason",
        "'unowned' in str(entry.reason)",
        "x = self.reason[:300]",
        "unreadable.reasons[key].startswith('lease')",
        "_SAID.match(reason)",
        "re.search('a', str(why))",
        "str(plan.reason).partition(':')",
        "def f(sizing):\n    last = sizing.reason\n    return str(last).startswith('lag')",
        "def f(reason):\n    cause = reason.why if x else reason\n    return 'lag' in str(cause)",
        "match event:\n    case Woken(reason='it is finished'): pass",
    ],
)
def test_a_reading_of_a_reasons_text_is_seen(source):
    assert len(list(readings("x.py", ast.parse(source)))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(entry.reason, ThereAlready)",
        "entry.reason is None",
        "f'because {entry.reason}'",
        "reason_json(plan.reason)",
        "unreadable.reasons[key]",
        "self.reasons.keys()",
        "key in unreadable.reasons",
    ],
)
def test_what_tells_a_reason_or_asks_for_its_class_is_no_reading(source):
    assert not list(readings("x.py", ast.parse(source)))
