"""The invariants of a fleet, one class each; they see a run and say what must not be."""

from shardfleet.testing.checkers.checker import (
    CallBegun,
    Checker,
    Handled,
    LeaseWrite,
    Suspect,
    Violation,
    Window,
)
from shardfleet.testing.checkers.fleet import (
    AlarmsAreTrue,
    CallsAreBounded,
    QuietFleetKeepsLeases,
    TurnsEndCleanly,
)
from shardfleet.testing.checkers.leases import (
    CheckpointForward,
    ChildrenBeforeEnd,
    CounterByOne,
    DeletedOnlyFinished,
    NothingForeign,
    OneEffectiveOwner,
)
from shardfleet.testing.checkers.ledger import Entry, Ledger
from shardfleet.testing.checkers.records import (
    CheckpointCoversDone,
    NoRecordLost,
    OnlyTheGuiltyGivenUp,
    OrderWithinKey,
    OrderWithinShard,
    ParentsBeforeChildren,
    RepetitionsExplained,
)

CHECKERS: tuple[type[Checker], ...] = (
    NoRecordLost,
    OrderWithinShard,
    OrderWithinKey,
    ParentsBeforeChildren,
    CheckpointCoversDone,
    RepetitionsExplained,
    OnlyTheGuiltyGivenUp,
    CounterByOne,
    CheckpointForward,
    OneEffectiveOwner,
    ChildrenBeforeEnd,
    DeletedOnlyFinished,
    NothingForeign,
    TurnsEndCleanly,
    QuietFleetKeepsLeases,
    CallsAreBounded,
    AlarmsAreTrue,
)

__all__ = [
    "CHECKERS",
    "AlarmsAreTrue",
    "CallBegun",
    "CallsAreBounded",
    "Checker",
    "CheckpointCoversDone",
    "CheckpointForward",
    "ChildrenBeforeEnd",
    "CounterByOne",
    "DeletedOnlyFinished",
    "Entry",
    "Handled",
    "LeaseWrite",
    "Ledger",
    "NoRecordLost",
    "NothingForeign",
    "OneEffectiveOwner",
    "OnlyTheGuiltyGivenUp",
    "OrderWithinKey",
    "OrderWithinShard",
    "ParentsBeforeChildren",
    "QuietFleetKeepsLeases",
    "RepetitionsExplained",
    "Suspect",
    "TurnsEndCleanly",
    "Violation",
    "Window",
]
