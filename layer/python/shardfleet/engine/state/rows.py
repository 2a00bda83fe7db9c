"""
Rows by key that are too many for one document: kept in several, which one writer replaces.

A document of the fleet state holds 400 KB (hazard H14), so a kind may have many: buckets, in which
a row has its place by a hash of its key, so that no row moves when others come and go. The rows of
one are one text of JSON: DynamoDB's own types take five times the CPU to read, and nine to write.
Of those in a document that cannot be read nothing is known, and the next write replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from zlib import crc32

import msgspec

from shardfleet.engine.ports import Document, StateStore
from shardfleet.engine.state.documents import DocumentKind, Documents, FoundDocument

R = TypeVar("R")

_ROWS = "leases"
# 500 rows of an id (128 characters at most), two worker ids and numbers are some 200 KB.
ROWS_PER_DOCUMENT = 500


class _Body(msgspec.Struct, frozen=True):
    leases: str


def rows_kind(name: str, row: type[R]) -> DocumentKind[dict[str, R]]:
    """Declare a kind of rows; columns of a later version are passed over."""
    decoder = msgspec.json.Decoder(dict[str, row])  # type: ignore[valid-type]
    return DocumentKind(name, _Body, made=lambda body: decoder.decode(body.leases))


async def read_rows(
    store: StateStore | Documents, kind: DocumentKind[dict[str, R]]
) -> dict[str, R]:
    """Read the rows of all documents of a kind that can be read."""
    return rows_of(await Documents.of(store).all(kind))


def rows_of(documents: Sequence[FoundDocument[dict[str, R]]]) -> dict[str, R]:
    """Return the rows of the documents that can be read."""
    rows: dict[str, R] = {}
    for document in documents:
        rows |= document.body or {}
    return rows


def one_text(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a document of rows."""
    return {_ROWS: msgspec.json.encode(rows).decode()}


async def write_rows(
    store: StateStore,
    kind: str,
    rows: Mapping[str, Any],
    *,
    per_document: int = ROWS_PER_DOCUMENT,
    found: Sequence[Document] | None = None,
    body: Callable[[Mapping[str, Any]], dict[str, Any]] = one_text,
) -> None:
    """
    Store rows instead of those before, each in its bucket; what has not changed is not written.

    Without rows there is one empty document, which says that they were kept. Documents that are
    none of these buckets are deleted when all of these are written: where one is refused, no row
    is missing.

    Only for kinds that the turn lock makes a single writer's.

    Args:
        store: of the documents.
        kind: of the rows.
        rows: by key.
        per_document: most rows of one.
        found: the documents as this writer has read or written them last; None: they are read.
        body: makes the body of a document.

    Raises:
        OutcomeUnknown, Throttled: not all of them are written.

    """
    known = {each.id: each for each in (await store.list(kind) if found is None else found)}
    count = _buckets(len(rows), per_document, before=max(map(_count_of, known), default=0))
    parts: list[dict[str, Any]] = [{} for _ in range(count)]
    for key in sorted(rows):
        parts[crc32(key.encode()) % count][key] = rows[key]
    for index, part in enumerate(parts):
        name, wanted = f"{count:04d}-{index:04d}", body(part)
        before = known.pop(name, None)
        if before is None or before.damage or before.body != wanted:
            version = None if before is None else before.version
            await store.write(kind, name, wanted, expected_version=version)
    for stale in known.values():
        await store.delete(kind, stale.id, expected_version=stale.version)


def _buckets(rows: int, per_document: int, *, before: int) -> int:
    """
    Return in how many documents so many rows are kept: as before, while they fit.

    A power of two, of which the fullest has half as many rows again as the mean; fewer only when
    they are far from full, for with the number every row moves.
    """
    mean_most = per_document * 2 // 3
    fewest = 1 << max(0, -(-rows // mean_most) - 1).bit_length()
    return before if fewest <= before <= 2 * fewest else fewest


def _count_of(name: str) -> int:
    """Return how many buckets there are, by the name of one; 0: it is none."""
    count, _, index = name.partition("-")
    return int(count) if count.isdigit() and index.isdigit() else 0
