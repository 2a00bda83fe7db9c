"""
Rows by key that are too many for one document: kept in several, which one writer replaces.

A document of the fleet state holds 400 KB (hazard H14), so a kind may have many, numbered. Its rows
are one text of JSON: DynamoDB's own types take five times the CPU to read, and nine to write. Of
those in a document that cannot be read nothing is known, and the next write replaces it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

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


async def read_rows(store: StateStore, kind: DocumentKind[dict[str, R]]) -> dict[str, R]:
    """Read the rows of all documents of a kind that can be read."""
    return rows_of(await Documents.of(store).all(kind))


def rows_of(documents: Sequence[FoundDocument[dict[str, R]]]) -> dict[str, R]:
    """Return the rows of the documents that can be read."""
    rows: dict[str, R] = {}
    for document in documents:
        rows |= document.body or {}
    return rows


async def write_rows(
    store: StateStore,
    kind: str,
    rows: Mapping[str, Any],
    *,
    per_document: int = ROWS_PER_DOCUMENT,
    found: Sequence[Document] | None = None,
) -> None:
    """
    Store rows instead of those before, ordered by key; what has not changed is not written.

    Without rows there is one empty document, which says that they were kept.

    Only for kinds that the turn lock makes a single writer's.

    Args:
        store: of the documents.
        kind: of the rows.
        rows: by key.
        per_document: most rows of one.
        found: the documents as this writer has read or written them last; None: they are read.

    Raises:
        OutcomeUnknown, Throttled: not all of them are written.

    """
    ordered = sorted(rows.items())
    known = {each.id: each for each in (await store.list(kind) if found is None else found)}
    for begin in range(0, max(1, len(ordered)), per_document):
        name = f"{begin // per_document:04d}"
        part = json.dumps(dict(ordered[begin : begin + per_document]), separators=(",", ":"))
        before = known.pop(name, None)
        if before is None or before.damage or before.body.get(_ROWS) != part:
            version = None if before is None else before.version
            await store.write(kind, name, {_ROWS: part}, expected_version=version)
    for stale in known.values():
        await store.delete(kind, stale.id, expected_version=stale.version)
