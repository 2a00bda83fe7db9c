"""
The lease store on DynamoDB, bit-compatible with the KCL's lease table.

Every write is one conditional request in one attempt (hazard H1). Behaves like Java's
``DynamoDBLeaseRefresher``, except that a lost race is a value and an unanswered write is
``OutcomeUnknown`` instead of a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from shardfleet.adapters.dynamodb.conditions import Placeholders, request_of
from shardfleet.adapters.dynamodb.items import (
    ENTITY_TYPE,
    LEASE_KEY,
    LEASE_OWNER,
    OWNER_INDEX,
    Item,
    foreign_lease_of,
    is_foreign,
    item_from_fields,
    key_of,
    lease_from_item,
    own_lease_from_item,
)
from shardfleet.adapters.sdk_errors import (
    TABLE_PAGING,
    ConditionFailed,
    ErrorFactory,
    SdkCall,
    pages,
    unsettled,
)
from shardfleet.adapters.thread_pool import ThreadPool, in_threads_of
from shardfleet.domain.leases.changes import failing
from shardfleet.domain.leases.foreign_leases import foreign_lease
from shardfleet.domain.leases.lease import (
    Applied,
    ChangeKind,
    ChangeResult,
    ForeignLease,
    Gone,
    Lease,
    LeaseChange,
    Lost,
    Survey,
)
from shardfleet.engine.ports import EventSink
from shardfleet.errors import (
    ConfigurationError,
    IndexNotReady,
    MalformedLease,
    ProtocolError,
    ShardfleetError,
)
from shardfleet.events.base import Event, Level

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import (
        AttributeDefinitionTypeDef,
        GlobalSecondaryIndexTypeDef,
    )


OWNER_INDEX_SCHEMA: GlobalSecondaryIndexTypeDef = {
    "IndexName": OWNER_INDEX,
    "KeySchema": [
        {"AttributeName": LEASE_OWNER, "KeyType": "HASH"},
        {"AttributeName": LEASE_KEY, "KeyType": "RANGE"},
    ],
    "Projection": {"ProjectionType": "KEYS_ONLY"},
}
"""As the KCL's ``DynamoDBLeaseRefresher`` makes it (protocol.md §1.3)."""

KEY_ATTRIBUTES: list[AttributeDefinitionTypeDef] = [
    {"AttributeName": LEASE_KEY, "AttributeType": "S"},
    {"AttributeName": LEASE_OWNER, "AttributeType": "S"},
]


class ForeignItemsFound(Event, frozen=True, kw_only=True):
    """
    A scan of the lease table met items that are no leases; they were skipped.

    Attributes:
        table: the lease table.
        items: how many.
        entity_types: their ``entityType`` values, sorted; empty text for none.

    """

    table: str
    items: int
    entity_types: tuple[str, ...]

    level: ClassVar[Level] = Level.DEBUG  # legal: KCL 3.5 keeps items of its own there


class TablePools(Struct, frozen=True, kw_only=True):
    """
    The threads and clients of the two tables.

    Attributes:
        writes: threads of conditional writes, with nothing else in them (hazard H17).
        reads: threads of reads.
        write_client: sends once.
        read_client: may repeat.

    """

    writes: ThreadPool
    reads: ThreadPool
    write_client: DynamoDBClient
    read_client: DynamoDBClient


class DynamoDBLeaseStore:
    """The ``LeaseStore`` port over one lease table."""

    def __init__(self, table: str, pools: TablePools, *, events: EventSink) -> None:
        """Use an existing table; nothing is read yet."""
        self._table = table
        self._pools = pools
        self._events = events
        client = pools.write_client
        self._writers: Mapping[ChangeKind, Callable[..., Mapping[str, Any]]] = {
            ChangeKind.PUT: client.put_item,
            ChangeKind.UPDATE: client.update_item,
            ChangeKind.DELETE: client.delete_item,
        }

    @in_threads_of("_pools.reads")
    def survey(self) -> Survey:
        """
        Return all leases (eventually consistent), and what else is in the table.

        That is items that cannot be read, and leases of another stream or mode. Items that are no
        leases are counted in a :class:`ForeignItemsFound`, too.

        Raises:
            Throttled: try again later.

        """
        call = self._call("Scan", "lease table")
        fetch = partial(call.run, self._pools.read_client.scan, TableName=self._table)
        found = LeasesAmong(item for page in pages(fetch, TABLE_PAGING) for item in page["Items"])
        if found.no_leases:
            types = {str(item.get(ENTITY_TYPE, {}).get("S", "")) for item in found.no_leases}
            self._events.emit(
                ForeignItemsFound(
                    table=self._table,
                    items=len(found.no_leases),
                    entity_types=tuple(sorted(types)),
                )
            )
        return Survey(
            leases=tuple(sorted(found.leases, key=lambda lease: lease.lease_key)),
            unreadable=dict(sorted(found.unreadable.items())),
            foreign=tuple(sorted(item[LEASE_KEY]["S"] for item in found.no_leases)),
            foreign_leases=tuple(sorted(found.foreign_leases, key=lambda each: each.lease_key)),
        )

    async def scan(self) -> Sequence[Lease]:
        """
        Return all leases (eventually consistent), ordered by key.

        Raises:
            MalformedLease: names every item that claims to be a lease and cannot be read.
                Nothing is returned then: a lease that cannot be read would look absent.
            Throttled: try again later.

        """
        return (await self.survey()).whole()

    @in_threads_of("_pools.reads")
    def keys_owned_by(self, worker_id: str) -> Sequence[str]:
        """
        Return lease keys by owner from the index (eventually consistent), ours only.

        Raises:
            IndexNotReady: the index is being built (a KCL 3 adds it to the table of a KCL 2).
            ConfigurationError: there is no such index.
            Throttled: try again later.

        """
        what = f"Query: {OWNER_INDEX} of lease table {self._table}"
        codes: dict[str, ErrorFactory] = {
            "ResourceNotFoundException": unsettled(ConfigurationError),
            "ValidationException": _unusable_index,
        }
        call = SdkCall(what, codes=codes)
        use = Placeholders()
        fetch = partial(
            call.run,
            self._pools.read_client.query,
            TableName=self._table,
            IndexName=OWNER_INDEX,
            KeyConditionExpression=f"{use.name(LEASE_OWNER)} = {use.value({'S': worker_id})}",
            **use.arguments(),
        )
        return [
            item[LEASE_KEY]["S"]
            for page in pages(fetch, TABLE_PAGING)
            for item in page["Items"]
            if foreign_lease(item[LEASE_KEY]["S"]) is None
        ]

    @in_threads_of("_pools.reads")
    def get(self, lease_key: str) -> Lease | None:
        """
        Return one lease, read consistently; None when there is no such lease of ours.

        Raises:
            MalformedLease: the item cannot be read.
            Throttled: try again later.

        """
        answer = self._call("GetItem", f"lease {lease_key} in").run(
            self._pools.read_client.get_item,
            TableName=self._table,
            Key=key_of(lease_key),
            ConsistentRead=True,
        )
        return own_lease_from_item(answer.get("Item"))

    @in_threads_of("_pools.writes")
    def apply(self, change: LeaseChange) -> ChangeResult:
        """
        Make one conditional write, in one attempt with a short time-out.

        Raises:
            OutcomeUnknown: sent, but no answer came.
            Throttled: refused or never sent; not applied.
            MalformedLease: the stored item cannot be read, or is no lease of ours (H23).

        """
        if (foreign := foreign_lease(change.lease_key)) is not None:
            raise MalformedLease(f"{change.operation} in {self._table}: {foreign}: not written")
        call = self._call(change.operation, f"lease {change.lease_key} in", writes=True)
        try:
            answer = call.run(self._writers[change.kind], **request_of(change, self._table))
        except ConditionFailed as failed:
            return self._refused(change, failed.item)
        if change.kind is ChangeKind.PUT:
            return Applied(lease_from_item(item_from_fields(change.sets)))
        return Applied(lease_from_item(answer["Attributes"]))

    def _refused(self, change: LeaseChange, item: Item | None) -> ChangeResult:
        if item is None:
            return Gone()
        current = own_lease_from_item(item)
        if current is None:
            what = "no lease" if is_foreign(item) else foreign_lease_of(item)
            raise MalformedLease(
                f"{change.operation} of lease {change.lease_key} in {self._table}: an item with "
                f"this key exists and is {what}; rename or delete it"
            )
        failed = failing(change, current)
        if not failed:
            raise ProtocolError(
                f"{change.operation} of lease {change.lease_key} in {self._table}: refused, "
                "although every condition holds on the item returned with the refusal"
            )
        return Lost(current, failed)

    def _call(self, operation: str, subject: str, *, writes: bool = False) -> SdkCall:
        codes = {
            "ResourceNotFoundException": unsettled(ConfigurationError),
            # An ADD to an attribute that is no number, for one.
            "ValidationException": MalformedLease,
        }
        what = f"{operation}: {subject} {self._table}"
        return SdkCall(what, writes=writes, codes=codes)


def _unusable_index(text: str) -> ShardfleetError:
    """
    Return the error of an index that is being built, or is not there.

    Text: "Cannot read from backfilling global secondary index" (cloudformation-coverage-roadmap
    #1075), while the stack that adds it is complete already.
    """
    is_made = "backfilling" in text
    return IndexNotReady(text) if is_made else unsettled(ConfigurationError)(text)


class LeasesAmong:
    """
    A lease table's items, sorted.

    Attributes:
        leases: ours, as they came.
        foreign_leases: of another stream or mode.
        no_leases: items that are none.
        unreadable: keys of those that cannot be read, each with the reason.

    """

    def __init__(self, items: Iterable[Item]) -> None:
        """Sort them."""
        self.leases: list[Lease] = []
        self.foreign_leases: list[ForeignLease] = []
        self.no_leases: list[Item] = []
        self.unreadable: dict[str, str] = {}
        for item in items:
            self._sort(item)

    def _sort(self, item: Item) -> None:
        if is_foreign(item):
            self.no_leases.append(item)
        elif (foreign := foreign_lease_of(item)) is not None:
            self.foreign_leases.append(foreign)
        else:
            try:
                self.leases.append(lease_from_item(item))
            except MalformedLease as error:
                self.unreadable[item[LEASE_KEY]["S"]] = str(error)
