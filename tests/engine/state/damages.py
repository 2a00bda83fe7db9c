"""What may have become of a document: by a later release, by an earlier one, or by anybody."""

import copy

from shardfleet.engine.ports import Document
from shardfleet.engine.state.documents import read_as
from shardfleet.engine.state.kinds import KINDS, kind_of
from tests.engine.state.documents_kit import FIXTURES, VERSION, kept

SECRET = "a-record-of-a-user"
# No field of any kind is all of these.
WRONG = {
    "text": SECRET,
    "number": 10**30,
    "fraction": 7.5,
    "list": [[SECRET]],
    "map": {SECRET: {SECRET: SECRET}},
    "nothing": None,
    "truth": True,
    "bytes": b"\x00" + SECRET.encode(),
}
DOCUMENTS = {str(kind): kept(FIXTURES / VERSION / f"{kind}.json") for kind in KINDS}


def changed(document, body, *, version=7, damage=""):
    """Return a document with another body, written by somebody since."""
    return Document(document.kind, document.id, version, body, damage)


def of_a_later_release(document):
    """Return a document with what this release does not know, at its top and in each map in it."""

    def grown(value, depth=0):
        if isinstance(value, dict) and (depth == 0 or "kind" in value):
            return {**{k: grown(v, depth + 1) for k, v in value.items()}, "of_later": [SECRET]}
        return value

    return changed(document, grown(copy.deepcopy(document.body)))


def damages(document):
    """Yield a name and a document for each damage that a document may have."""
    body = document.body
    yield "nonsense", changed(document, {SECRET: SECRET, "x": [1, {"y": SECRET}]})
    yield "empty", changed(document, {})
    yield "no version", changed(document, body, version=0, damage="its version is no number")
    yield "no body", changed(document, {}, damage="its body is no map")
    for field in body:
        yield f"without {field}", changed(document, {k: v for k, v in body.items() if k != field})
        for name, value in WRONG.items():
            yield f"{field} {name}", changed(document, {**body, field: value})


CELLS = [
    (f"{kind}: {name}", document)
    for kind, whole in DOCUMENTS.items()
    for name, document in damages(whole)
]


def told_apart(cells):
    """
    Return the first of the cells that the one reader tells apart: by what it makes of them.

    Nobody else takes a body apart (test_documents.py): the others would be the same turns again.
    """
    first = {}
    for cell, document in cells:
        reading = read_as(kind_of(document.kind), document)
        key = (document.kind, document.version, repr(reading.body), bool(document.damage))
        first.setdefault(key, (cell, document))
    return [*first.values()]


TOLD_APART = told_apart(CELLS)
