"""
The state store on DynamoDB: versioned documents in the fleet's own table, never in the lease table.

Table: partition key ``kind`` (S), sort key ``id`` (S), ``version`` (N), ``body`` (M), and for some
``expires`` (N, epoch seconds), the table's time-to-live. Every write, creation included, is one
UpdateItem, conditional on the version if it brings a body, so that a worker needs no right but
GetItem and UpdateItem (hazard H19).

Anybody with that right can put anything there, so no item is refused: what is not as it is written
is its document's damage. An item whose version is none that counts has the version 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

from shardfleet.adapters.dynamodb.conditions import Placeholders
from shardfleet.adapters.dynamodb.leases import TablePools
from shardfleet.adapters.sdk_errors import TABLE_PAGING, ConditionFailed, SdkCall, pages, unsettled
from shardfleet.adapters.thread_pool import in_threads_of
from shardfleet.engine.ports import Conflict, Document, DocumentPage, Written
from shardfleet.errors import ConfigurationError, ProtocolError

EXPIRES = "expires"  # cdk/shardfleet_cdk/lease_table.py names it as the time-to-live
_NUMBER_DIGITS = 38  # DynamoDB: numbers have up to 38 digits of precision
# Of a document that is written every millisecond for 30,000 years.
_VERSION_MOST = 10**15
_UNVERSIONED = 0


class DynamoDBStateStore:
    """The ``StateStore`` port over one fleet-state table."""

    def __init__(self, table: str, pools: TablePools) -> None:
        """Use an existing table; nothing is read yet."""
        self._table = table
        self._pools = pools

    @in_threads_of("_pools.reads")
    def read(self, kind: str, id: str) -> Document | None:  # noqa: A002 - the port's name
        """
        Read one document consistently.

        Raises:
            Throttled: try again later.

        """
        answer = self._call("GetItem", f"{kind}/{id}").run(
            self._pools.read_client.get_item,
            TableName=self._table,
            Key=_key(kind, id),
            ConsistentRead=True,
        )
        return _document(answer["Item"]) if "Item" in answer else None

    @in_threads_of("_pools.reads")
    def list(self, kind: str) -> Sequence[Document]:
        """
        Read all documents of a kind consistently, ordered by id.

        Raises:
            Throttled: try again later.

        """
        use = Placeholders()
        fetch = partial(
            self._call("Query", kind).run,
            self._pools.read_client.query,
            TableName=self._table,
            KeyConditionExpression=f"{use.name('kind')} = {use.value({'S': str(kind)})}",
            ConsistentRead=True,
            **use.arguments(),
        )
        found = [i for page in pages(fetch, TABLE_PAGING) for i in page["Items"]]
        return [_document(item) for item in found]

    @in_threads_of("_pools.reads")
    def page(self, after: tuple[str, str] | None = None) -> DocumentPage:
        """
        Read up to 1 MB of documents of all kinds, eventually consistent.

        Raises:
            Throttled: try again later.

        """
        begin = {} if after is None else {"ExclusiveStartKey": _key(*after)}
        answer = self._call("Scan", "documents").run(
            self._pools.read_client.scan, TableName=self._table, **begin
        )
        last = answer.get("LastEvaluatedKey")
        return DocumentPage(
            documents=[_document(item) for item in answer["Items"]],
            after=(last["kind"]["S"], last["id"]["S"]) if last else None,
        )

    @in_threads_of("_pools.writes")
    def write(
        self,
        kind: str,
        id: str,  # noqa: A002 - the port's name
        body: Mapping[str, Any],
        *,
        expected_version: int | None,
        expires_ms: int | None = None,
    ) -> Written | Conflict:
        """
        Compare-and-set: ``expected_version`` None means the document must not exist.

        Raises:
            OutcomeUnknown: sent, but no answer came; read again and compare.
            Throttled: refused or never sent; not applied.
            ProtocolError: the body holds something that no document can hold.

        """
        return self._write(kind, id, body, expected_version=expected_version, expires_ms=expires_ms)

    def _write(
        self,
        kind: str,
        id: str,  # noqa: A002 - the port's name
        body: Mapping[str, Any],
        *,
        expected_version: int | None,
        expires_ms: int | None = None,
    ) -> Written | Conflict:
        typed = {"M": {k: _to_wire(v, f"{kind}/{id}.{k}") for k, v in body.items()}}
        use = Placeholders()
        version = (expected_version or 0) + 1
        update = (
            f"SET {use.name('body')} = {use.value(typed)},"
            f" {use.name('version')} = {use.value({'N': str(version)})}"
        )
        if expires_ms is not None:
            seconds = {"N": str(expires_ms // 1_000)}  # DynamoDB's time-to-live is in seconds
            update += f", {use.name(EXPIRES)} = {use.value(seconds)}"
        condition = _version_is(expected_version, use)
        try:
            self._update(
                f"{kind}/{id}",
                use,
                Key=_key(kind, id),
                UpdateExpression=update,
                ConditionExpression=condition,
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except ConditionFailed as failed:
            return Conflict(_document(failed.item) if failed.item else None)
        # As it was written: a document of hundreds of rows need not come back.
        return Written(Document(kind, id, version, body))

    @in_threads_of("_pools.writes")
    def increment(self, kind: str, id: str) -> int:  # noqa: A002 - the port's name
        """
        Add one to the version of a document (made when absent, its body empty); return the version.

        One that has no version that counts begins anew.

        Raises:
            OutcomeUnknown: sent, but no answer came; it may have counted.
            Throttled: refused or never sent.

        """
        use = Placeholders()
        body, empty = use.name("body"), use.value({"M": {}})
        one = use.value({"N": "1"})
        update = f"SET {body} = if_not_exists({body}, {empty}) ADD {use.name('version')} {one}"
        absent = _version_is(None, use)
        try:
            answer = self._update(
                f"{kind}/{id}",
                use,
                Key=_key(kind, id),
                UpdateExpression=update,
                ConditionExpression=f"{absent} OR {_counts(use)}",
                ReturnValues="ALL_NEW",
            )
        except ConditionFailed:
            anew = self._write(kind, id, {}, expected_version=_UNVERSIONED)
            counted = anew.document if isinstance(anew, Written) else anew.current
            return counted.version if counted else _UNVERSIONED
        return _document(answer["Attributes"]).version

    @in_threads_of("_pools.writes")
    def delete(self, kind: str, id: str, *, expected_version: int) -> bool:  # noqa: A002
        """
        Delete if the version is as expected; return whether it was.

        Raises:
            OutcomeUnknown: sent, but no answer came.
            Throttled: refused or never sent; not applied.

        """
        use = Placeholders()
        try:
            self._call("DeleteItem", f"{kind}/{id}", writes=True).run(
                self._pools.write_client.delete_item,
                TableName=self._table,
                Key=_key(kind, id),
                ConditionExpression=_version_is(expected_version, use),
                **use.arguments(),
            )
        except ConditionFailed:
            return False
        return True

    def _update(self, subject: str, use: Placeholders, **arguments: Any) -> Mapping[str, Any]:
        return self._call("UpdateItem", subject, writes=True).run(
            self._pools.write_client.update_item,
            TableName=self._table,
            **arguments,
            **use.arguments(),
        )

    def _call(self, operation: str, subject: str, *, writes: bool = False) -> SdkCall:
        what = f"{operation}: {subject} in fleet-state table {self._table}"
        codes = {"ResourceNotFoundException": unsettled(ConfigurationError)}
        return SdkCall(what, writes=writes, codes=codes)


def _key(kind: str, id: str) -> dict[str, Any]:  # noqa: A002 - the port's name
    # A kind may be more than its name, of which the encoder wants to know nothing.
    return {"kind": {"S": str(kind)}, "id": {"S": str(id)}}


def _version_is(expected: int | None, use: Placeholders) -> str:
    if expected is None:
        return f"attribute_not_exists({use.name('kind')})"
    if expected == _UNVERSIONED:
        return f"attribute_exists({use.name('kind')}) AND NOT {_counts(use)}"
    return _is_between(expected, expected + 1, use)  # Of a fraction its whole part counts.


def _counts(use: Placeholders) -> str:
    """Return the condition that an item has a version; what is no number has none."""
    return f"({_is_between(1, _VERSION_MOST + 1, use)})"


def _is_between(first: int, end: int, use: Placeholders) -> str:
    version, number = use.name("version"), use.value({"S": "N"})
    least, beyond = use.value({"N": str(first)}), use.value({"N": str(end)})
    is_number = f"attribute_type({version}, {number})"
    return f"{is_number} AND {version} >= {least} AND {version} < {beyond}"


def _document(item: Mapping[str, Any]) -> Document:
    number, body = _number(item.get("version", {}).get("N", "0")), item.get("body", {})
    version = int(number) if 1 <= number < _VERSION_MOST + 1 else _UNVERSIONED
    damage = "" if version and version == number else "its version is no whole number above 0"
    if "M" not in body:
        damage, body = "its body is no map", {"M": {}}
    return Document(
        kind=item["kind"]["S"],
        id=item["id"]["S"],
        version=version,
        body={name: _from_wire(value) for name, value in body["M"].items()},
        damage=damage,
    )


def _to_wire(value: object, path: str) -> dict[str, Any]:
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case int() if abs(value) < 10**_NUMBER_DIGITS:
            return {"N": str(value)}
        case str():
            return {"S": value}
        case Mapping():
            return {"M": {str(k): _to_wire(v, f"{path}.{k}") for k, v in value.items()}}
        case list() | tuple():
            return {"L": [_to_wire(v, f"{path}[{i}]") for i, v in enumerate(value)]}
        case _:
            raise ProtocolError(
                f"document {path}: {type(value).__name__} found; str, bool, None, list, dict and "
                f"int of up to {_NUMBER_DIGITS} digits are allowed"
            )


def _from_wire(typed: Mapping[str, Any]) -> Any:
    ((kind, value),) = typed.items()
    match kind:
        case "NULL":
            return None
        case "N":
            return _number(value)
        case "M":
            return {name: _from_wire(v) for name, v in value.items()}
        case "L":
            return [_from_wire(v) for v in value]
        case "S" | "BOOL":
            return value
        case _:
            return _Other(kind)


class _Other:
    """Bytes, or a set: of no type that is ever written, so that no kind of document reads it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


def _number(text: str) -> int | float:
    if text.isascii() and text.isdigit():
        return int(text)
    number = Decimal(text)
    return int(number) if number == number.to_integral_value() else float(number)
