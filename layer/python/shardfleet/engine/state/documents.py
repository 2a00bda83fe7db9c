"""
The one reader of the fleet-state table's documents: what is there, as its kind says it is.

Every kind is declared once, in :mod:`shardfleet.engine.state.kinds`. What an earlier release has
not written has a default, and what a later one has added is passed over (H19). A document that is
neither is *unreadable*: that is an outcome and no error, told by whoever met it, and harms nothing
but itself. What was in it is never quoted: it may be anything, records included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Generic, Self, TypeVar

import msgspec
from msgspec import Struct

from shardfleet.engine.ports import (
    Document,
    EventSink,
    StateStore,
)
from shardfleet.errors import MalformedDocument, ProtocolError
from shardfleet.events.worker import DocumentUnreadable

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# The last millisecond that a datetime can say, 9999-12-31: no count of ours comes near it, and what
# is greater breaks whoever tells it to a person.
NUMBER_MOST = 253_402_300_799_999
REASON_MOST = 200  # characters of why a document cannot be read


class UnreadableDocument(Struct, frozen=True):
    """
    A document that cannot be read.

    Attributes:
        kind: of the document.
        id: within the kind.
        version: as it was read; 0: it has none that counts.
        reason: which part of it, what was found there and what is expected; quotes nothing.

    """

    kind: str
    id: str
    version: int
    reason: str

    @property
    def name(self) -> str:
        """Return how it is named to a person and to a command: ``kind/id``."""
        return f"{self.kind}/{self.id}"

    def __str__(self) -> str:
        """Return which document, and why."""
        return f"{self.name}: {self.reason}"


class Lifetime(Enum):
    """How long documents of a kind are kept."""

    FLEET = "as long as the fleet"
    LEASE = "until the lease that is its id is over"
    DAY = "one day's are of a kind of their own, <name> <day>"


class Keeping(Struct, frozen=True):
    """
    For how long documents of a kind are kept, and whose they are.

    Attributes:
        lifetime: how long.
        is_workers: a worker may write them, and so may a handler, which has the worker's rights.

    """

    lifetime: Lifetime = Lifetime.FLEET
    is_workers: bool = False


_MANAGERS = Keeping()


class DocumentKind(str, Generic[T_co]):
    """
    A kind of documents: its name, what a document of it says, for how long, and whose it is.

    Attributes:
        body: type of the body, as msgspec reads it.
        id_field: the field of the body that is the document's id and is not stored, if any.
        made: what is made of a body; raises ProtocolError for one that means nothing.
        required: fields that a document has although its type has a default for them.
        kept: for how long, and by whom.

    """

    __slots__ = ("body", "id_field", "kept", "made", "required")
    body: Any
    id_field: str
    kept: Keeping
    made: Callable[[Any], T_co] | None
    required: tuple[str, ...]

    def __new__(
        cls,
        name: str,
        body: Any,
        *,
        id_field: str = "",
        made: Callable[[Any], T_co] | None = None,
        required: tuple[str, ...] = (),
        kept: Keeping = _MANAGERS,
    ) -> Self:
        """Declare a kind; a body that is made into nothing else is what is read."""
        kind = super().__new__(cls, name)
        kind.body, kind.id_field, kind.made, kind.kept = body, id_field, made, kept
        kind.required = required
        return kind

    def of_day(self, day: str) -> DocumentKind[T_co]:
        """Return the kind of one day's documents, so that a day can be read by itself."""
        return DocumentKind(f"{self} {day}", self.body, id_field=self.id_field, made=self.made)

    def read(self, body: Mapping[str, Any], name: str) -> T_co:
        """
        Read a body.

        Args:
            body: as the table has it.
            name: the document's id.

        Raises:
            msgspec.MsgspecError, ProtocolError, RecursionError: it is none of this kind.

        """
        if self.id_field:
            body = {**body, self.id_field: name}
        for field in self.required:
            if field not in body:
                raise msgspec.ValidationError(f"Object missing required field `{field}`")
        found = msgspec.convert(body, self.body)
        if self.made is not None:
            return self.made(found)
        value: T_co = found
        return value


class FoundDocument(Struct, Generic[T], frozen=True):
    """
    A document that is there.

    Attributes:
        id: within its kind.
        version: the compare-and-set token.
        body: what it says; None: it cannot be read.
        reason: why it cannot be read, else "".

    """

    id: str
    version: int
    body: T | None
    reason: str = ""


def ignore(document: UnreadableDocument) -> None:
    """Emit nothing: whoever looks at all documents does."""
    del document


class TellOnce:
    """Tells by an event of each document that cannot be read, once for each version of it."""

    def __init__(self, events: EventSink) -> None:
        """Nothing is told yet."""
        self._events = events
        self._told: set[UnreadableDocument] = set()

    def __call__(self, document: UnreadableDocument) -> None:
        """Emit one event for each unreadable version."""
        if document not in self._told:
            self._told.add(document)
            self._events.emit(event_of(document))


def event_of(document: UnreadableDocument) -> DocumentUnreadable:
    """Return what is told of a document that cannot be read."""
    return DocumentUnreadable(document=document.name, reason=document.reason)


class Documents:
    """
    The fleet-state table, read by kinds.

    Attributes:
        raw: the documents as they are kept; what is written is written there.

    """

    def __init__(
        self, store: StateStore, tell: Callable[[UnreadableDocument], None] = ignore
    ) -> None:
        """
        Wrap a store.

        Args:
            store: the documents as they are kept.
            tell: called with each document that cannot be read, each time it is met.

        """
        self.raw = store
        self._tell = tell

    @classmethod
    def of(cls, store: StateStore | Documents) -> Documents:
        """Return a store that reads by kinds, which it may be already."""
        return store if isinstance(store, Documents) else cls(store)

    async def get(self, kind: DocumentKind[T], id: str) -> FoundDocument[T] | None:  # noqa: A002 - the port's name
        """Read one document consistently; None: there is none."""
        document = await self.raw.read(kind, id)
        return None if document is None else self.typed(kind, document)

    async def all(self, kind: DocumentKind[T]) -> list[FoundDocument[T]]:
        """Read all documents of a kind consistently, ordered by id (manager and CLI only)."""
        return [self.typed(kind, document) for document in await self.raw.list(kind)]

    async def bodies(self, kind: DocumentKind[T]) -> list[T]:
        """Read what those of a kind say that can be read, ordered by id (manager and CLI only)."""
        return [found.body for found in await self.all(kind) if found.body is not None]

    def typed(self, kind: DocumentKind[T], document: Document) -> FoundDocument[T]:
        """Return a document as its kind says; one that cannot be read is told."""
        found = read_as(kind, document)
        if found.body is None:
            self._tell(UnreadableDocument(kind, found.id, found.version, found.reason))
        return found


def read_as(kind: DocumentKind[T], document: Document) -> FoundDocument[T]:
    """Return a document as its kind says, or why it cannot be read."""
    name, version = document.id, document.version
    words = document.damage or out_of_range(document.body)
    if not words:
        try:
            return FoundDocument(name, version, kind.read(document.body, name))
        except (msgspec.MsgspecError, ProtocolError, RecursionError) as error:
            words = _in_words(error)
    return FoundDocument(name, version, None, words[:REASON_MOST])


def malformed(kind: str, found: FoundDocument[Any]) -> MalformedDocument:
    """Return the error that a document cannot be read, for where nothing may stand for it."""
    return MalformedDocument(
        f"fleet-state document {kind}/{found.id} cannot be read: {found.reason}; "
        "`shardfleet documents` shows it, and mends or drops it",
        version=found.version,
    )


def _in_words(error: Exception) -> str:
    """Return what is wrong, without what was found where that may be anybody's."""
    if not isinstance(error, msgspec.ValidationError):
        # Of ours, which quotes what it could not read; or of JSON that is none.
        return "what it says means nothing" if isinstance(error, ProtocolError) else "it is no JSON"
    text = str(error)
    if text.startswith("Invalid enum value"):
        _, _, where = text.partition(" - at ")
        return f"a value that is not known - at {where}" if where else "a value that is not known"
    return text


def out_of_range(value: object, path: str = "$") -> str:
    """Return where a number is greater than any that is written; "" if none is."""
    if isinstance(value, int):
        return "" if abs(value) <= NUMBER_MOST else f"a number out of range - at `{path}`"
    if isinstance(value, Mapping):
        # A key may be anything, as in msgspec's words.
        parts = ((f"{path}[...]", each) for each in value.values() if not _is_plain(each))
    elif isinstance(value, list | tuple):
        parts = ((f"{path}[{i}]", each) for i, each in enumerate(value) if not _is_plain(each))
    else:
        return ""
    return next(filter(None, (out_of_range(each, where) for where, each in parts)), "")


def _is_plain(value: object) -> bool:
    """Return whether a value is a text or a small number, as most of a thousand are."""
    return type(value) is str or (type(value) is int and -NUMBER_MOST <= value <= NUMBER_MOST)
