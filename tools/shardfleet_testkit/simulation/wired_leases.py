"""
The lease table behind the product's own adapter: requests and answers as they are on the wire.

The adapter's client is the SDK's in one half of the fleets, and in the other what a worker has by
default (``stream_calls``); only the connection is missing. Each request is checked by DynamoDB's
model. What the table makes of a request is held against what the domain says that the change does,
and what the adapter makes of an answer against what is in the table.
"""

from __future__ import annotations

import io
import json
from base64 import b64encode
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.session import Session
from botocore.validate import ParamValidator

from shardfleet.adapters.clients.aws_clients import AwsClients, ConnectionLimits
from shardfleet.adapters.dynamodb.items import ATTRIBUTES, LEASE_KEY, LEASE_OWNER, item_from_fields
from shardfleet.adapters.dynamodb.leases import DynamoDBLeaseStore, TablePools
from shardfleet.adapters.dynamodb.wire import TableWire
from shardfleet.adapters.http.answers import HttpAnswer
from shardfleet.adapters.http.json_service import JsonEndpoint, JsonService, Limits, Service
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.domain.leases.changes import fields_of
from shardfleet.domain.leases.lease import (
    Applied,
    ChangeResult,
    Gone,
    Lease,
    LeaseChange,
    LeaseField,
    Lost,
    Survey,
)
from shardfleet_testkit.checkers import Suspect, Violation
from shardfleet_testkit.clock import HOLDER
from shardfleet_testkit.memory import MemoryEvents
from shardfleet_testkit.simulation.actors import Actor
from shardfleet_testkit.simulation.items import Item, ItemTable, Refusal
from shardfleet_testkit.simulation.surroundings import Surroundings
from shardfleet_testkit.simulation.tables import LeaseTable

T = TypeVar("T")

_BY_DEFAULT = 0.5
_THROTTLED_ONE_IN = 50
_PAGE_ITEMS_MOST = 12
_TYPE = "application/x-amz-json-1.0"
# What a stranger leaves of a row: no counter that can be read, or added to.
_GARBLED: Item = {ATTRIBUTES[LeaseField.LEASE_COUNTER][0].name: {"S": "x"}}


class WiredTable(LeaseTable):
    """A lease table that is read and written by the product's adapter; counts its requests."""

    def __init__(self, around: Surroundings) -> None:
        """Begin empty."""
        super().__init__(around)
        self._chance = around.chance("wire of leases")
        self._items = ItemTable(LEASE_KEY, page_items=self._page_items)
        self._caller: object = None
        client = _client(self._answer)
        if self._chance.random() < _BY_DEFAULT:
            self._operation = client.meta.service_model.operation_model
            service = _NoConnection(client, self._checked)
            sdk = client
            client = TableWire(lambda: sdk, lambda: service, count=lambda _name, _answer: None)
        threads = _NoThreads("none", threads=1)
        pools = TablePools(writes=threads, reads=threads, write_client=client, read_client=client)
        self._adapter = DynamoDBLeaseStore("leases", pools, events=MemoryEvents())

    async def survey(self, then: Sequence[Lease] | None = None) -> Survey:
        """Return what the adapter makes of the pages of a scan, which come in no order."""
        found = await super().survey(then)
        items = [*map(item_of, found.leases), *map(self._garbled, found.unreadable)]
        self._chance.shuffle(items)
        told = await self._asked(self._adapter.survey(), items)
        self._compare("*", _rows(told.leases), _rows(found.leases))
        self._compare("*", sorted(told.unreadable), sorted(found.unreadable))
        return told

    async def keys_owned_by(
        self, worker_id: str, then: Sequence[Lease] | None = None
    ) -> Sequence[str]:
        """Return what the adapter makes of the pages of a query of the index."""
        leases = self.store.leases.values() if then is None else then
        items = [
            {LEASE_KEY: {"S": lease.lease_key}, LEASE_OWNER: {"S": lease.lease_owner}}
            for lease in sorted(leases, key=lambda lease: lease.lease_key)
            if lease.lease_owner is not None
        ]
        told = await self._asked(self._adapter.keys_owned_by(worker_id), items)
        self._compare(worker_id, list(told), list(await super().keys_owned_by(worker_id, then)))
        return told

    async def get(self, lease_key: str) -> Lease | None:
        """Return what the adapter makes of an item."""
        told = await self._asked(self._adapter.get(lease_key), self._stored(lease_key))
        found = await super().get(lease_key)
        self._compare(lease_key, _rows((told,)), _rows((found,)))
        return told

    async def apply(self, change: LeaseChange, by: Suspect) -> ChangeResult:
        """Apply a change that came as a request; return what the adapter makes of the answer."""
        key = change.lease_key
        if key in self.store.unreadable:
            await self._asked(self._adapter.apply(change), self._stored(key), by)
            message = f"{change.operation} of {key}: the adapter read what nobody can read"
            raise AssertionError(message)
        told = await self._asked(self._adapter.apply(change), self._stored(key), by)
        left = self._items.items.get(key)
        result = await super().apply(change, by)
        self._compare(key, _answer_of(told), _answer_of(result))
        self._compare(key, _plain(left), _plain(next(iter(self._stored(key)), None)))
        return told

    def _stored(self, key: str) -> list[Item]:
        if key in self.store.unreadable:
            return [self._garbled(key)]
        return [item_of(self.store.leases[key])] if key in self.store.leases else []

    def _garbled(self, key: str) -> Item:
        return item_of(self.store.leases[key]) | _GARBLED

    async def _asked(
        self, call: Coroutine[Any, Any, T], items: Iterable[Item], by: Suspect | None = None
    ) -> T:
        """Let the adapter ask a table with these items in it."""
        self._items.items = {item[LEASE_KEY]["S"]: item for item in items}
        self._caller = by or HOLDER.get()
        return await call

    def _answer(self, request: Any, **_: object) -> AWSResponse:
        """Answer a request of the SDK's, as the connection would have brought it."""
        operation = request.headers["X-Amz-Target"].decode().rpartition(".")[2]
        status, body = self._answer_to(operation, request.body)
        headers = HTTPHeaders.from_dict({"Content-Type": _TYPE})
        return AWSResponse(request.url, status, headers, _Raw(body))

    def _checked(self, operation: str, request: bytes) -> tuple[int, bytes]:
        """Answer a request that nobody has checked by DynamoDB's model."""
        shape = self._operation(operation).input_shape
        if errors := ParamValidator().validate(json.loads(request), shape).generate_report():
            self._around.violated(
                Violation(self._around.now_ms, "WireSaysTheSame", operation, errors)
            )
        return self._answer_to(operation, request)

    def _answer_to(self, operation: str, request: bytes) -> tuple[int, bytes]:
        """Return the status and the body of an answer."""
        self.requests[operation] += 1
        status, body = 200, {}
        try:
            if self._around.faults.are_on and not self._chance.randrange(_THROTTLED_ONE_IN):
                if isinstance(self._caller, Actor):
                    self._caller.suffered("throttled")
                text = "The level of configured provisioned throughput was exceeded"
                raise Refusal("ProvisionedThroughputExceededException", text)
            body = self._items.answer(operation, json.loads(request))
        except Refusal as refusal:
            status, body = 400, refusal.body
        return status, json.dumps(body, default=_base64).encode()

    def _page_items(self) -> int:
        return self._chance.randint(1, _PAGE_ITEMS_MOST)

    def _compare(self, subject: str, told: object, found: object) -> None:
        if told != found:
            text = f"the adapter says {told}, the table {found}"
            self._around.violated(Violation(self._around.now_ms, "WireSaysTheSame", subject, text))


def item_of(lease: Lease) -> Item:
    """Return a lease as an item."""
    return item_from_fields(fields_of(lease))


def _rows(leases: Iterable[Lease | None]) -> list[Item | None]:
    """Return leases as they are stored: a rate has six decimals there."""
    return [None if lease is None else item_of(lease) for lease in leases]


def _answer_of(result: ChangeResult) -> object:
    match result:
        case Applied(lease):
            return "applied", item_of(lease)
        case Lost(current, failed):
            return "lost", item_of(current), failed
        case Gone():
            return "gone"


def _plain(item: Item | None) -> object:
    """Return an item as it comes out of JSON, without the order of its sets and what is zero."""
    return item and {
        name: sorted(value["SS"]) if "SS" in value else json.dumps(value, default=_base64)
        for name, value in item.items()
    }


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


class _NoThreads(ThreadPool):
    """Calls that wait for nobody, made at once."""

    async def run(self, call: Callable[[], T]) -> T:
        return call()


class _Raw(io.BytesIO):
    """The body of an answer."""

    def stream(self, **_: object) -> Iterator[bytes]:
        yield self.getvalue()


class _NoConnection(JsonService):
    """The service where a worker would have opened it."""

    def __init__(self, client: Any, answer: Callable[[str, bytes], tuple[int, bytes]]) -> None:
        """Open nothing."""
        site = JsonEndpoint(Service("dynamodb", "none", "1.0"), "http://none", "", "")
        nobody: Any = None
        super().__init__(
            site, Limits(1, 1, 1, 1), credentials=nobody, user_agent="", client=lambda: client
        )
        self._answer = answer

    def post(self, operation: str, body: bytes, *, content_type: str | None = None) -> HttpAnswer:
        del content_type
        status, answer = self._answer(operation, body)
        return HttpAnswer(status, f"HTTP/1.1 {status}\r\ncontent-type: {_TYPE}".encode(), answer)


def _client(answer: Callable[..., Any]) -> Any:
    """Return the product's client of the table's writes, which sends once, without a network."""
    session = Session()
    session.set_credentials("nobody", "nothing")
    session.set_config_variable("region", "eu-central-1")
    limits = ConnectionLimits(writes=1, reads=1, streams=1)
    client = AwsClients(limits, session=session).table_writes
    client.meta.events.register("before-send.dynamodb", answer)
    return client
