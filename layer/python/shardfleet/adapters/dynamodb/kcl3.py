"""
What a KCL 3 keeps beside the leases: rows of its workers' metrics, and how far it has migrated.

Until 3.4 they have two tables of their own, since 3.5 they are items of the lease table
(protocol.md §2.1, §2.3, §2.6). Rows of ours go where those of others are found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardfleet.adapters.dynamodb.conditions import Placeholders
from shardfleet.adapters.dynamodb.items import ENTITY_TYPE, LEASE_KEY, Item
from shardfleet.adapters.dynamodb.leases import TablePools
from shardfleet.adapters.sdk_errors import (
    TABLE_PAGING,
    ConditionFailed,
    RefusalIsAnswer,
    SdkCall,
    pages,
)
from shardfleet.adapters.thread_pool import in_threads_of
from shardfleet.domain.balance.kcl3 import Kcl3, WorkerRow
from shardfleet.domain.slots.usage import UNKNOWN

ROWS_KEY, STATE_KEY = "wid", "key"
MIGRATION = "Migration3.0"
ROW_ENTITY = "WORKER_METRIC_STATS"
_UPDATED, _VERSION, _SUPPORT = "lut", "cv", "sup"
# Per cent; ``LinuxCpuWorkerMetric`` and the others have it as their operating range.
_CPU_MOST = 100


class DynamoDBKcl3Store:
    """The ``Kcl3Store`` port over the tables of one application, whichever there are."""

    def __init__(self, lease_table: str, pools: TablePools, *, own: tuple[str, str]) -> None:
        """
        Read nothing yet.

        Args:
            lease_table: where a KCL since 3.5 keeps it.
            pools: of the calls.
            own: the tables of a KCL until 3.4, see :attr:`FleetConfig.kcl_tables`.

        """
        self._lease_table = lease_table
        self._rows_table, self._state_table = own
        self._pools = pools
        self._is_single = False

    @in_threads_of("_pools.reads")
    def found(self, foreign: Sequence[str]) -> Kcl3:
        """
        Look for rows and for the migration item; a table that is not there costs nothing.

        Raises:
            Throttled: try again later.

        """
        items = [item for key in foreign if (item := self._item(self._lease_table, LEASE_KEY, key))]
        rows = [row for item in items for row in _rows(item, LEASE_KEY)]
        self._is_single = bool(rows)
        own = list(self._own_rows())
        version = next((_version(i) for i in items if i[LEASE_KEY] == {"S": MIGRATION}), "")
        if own and not version:
            item = self._item(self._state_table, STATE_KEY, MIGRATION)
            version = _version(item or {})
        return Kcl3(rows=(*rows, *own), version=version, is_single=self._is_single)

    def _own_rows(self) -> Iterator[WorkerRow]:
        table = self._rows_table
        call = SdkCall(f"Scan: {table}", codes={"ResourceNotFoundException": RefusalIsAnswer})
        client = self._pools.read_client
        try:
            for page in pages(lambda **more: call.run(client.scan, TableName=table, **more),
                              TABLE_PAGING):  # fmt: skip
                for item in page["Items"]:
                    yield from _rows(item, ROWS_KEY)
        except RefusalIsAnswer:
            return

    def _item(self, table: str, key: str, value: str) -> Item | None:
        call = SdkCall(
            f"GetItem: {value} in {table}", codes={"ResourceNotFoundException": RefusalIsAnswer}
        )
        try:
            answer = call.run(
                self._pools.read_client.get_item, TableName=table, Key={key: {"S": value}}
            )
        except RefusalIsAnswer:
            return None
        return answer.get("Item")

    @in_threads_of("_pools.writes")
    def write(self, row: WorkerRow) -> None:
        """
        Write a row; where a worker's row has no CPU, all are balanced by throughput.

        Raises:
            OutcomeUnknown, Throttled: the next turn writes it again.

        """
        use = Placeholders()
        has_cpu = row.cpu != UNKNOWN
        sets: dict[str, dict[str, Any]] = {
            _UPDATED: {"N": str(row.updated_s)},
            "sts": {"M": _cpu(row.cpu / 10) if has_cpu else {}},
            "opr": {"M": _cpu(_CPU_MOST) if has_cpu else {}},
        }
        if self._is_single:
            sets[ENTITY_TYPE] = {"S": ROW_ENTITY}
        told = ", ".join(f"{use.name(name)} = {use.value(value)}" for name, value in sets.items())
        self._call("UpdateItem", row).run(
            self._pools.write_client.update_item,
            **self._at(row),
            UpdateExpression=f"SET {told}",
            **use.arguments(),
        )

    @in_threads_of("_pools.writes")
    def delete(self, row: WorkerRow) -> None:
        """
        Delete a row unless it was written since.

        Raises:
            OutcomeUnknown, Throttled: the next turn deletes it.

        """
        use = Placeholders()
        condition = f"{use.name(_UPDATED)} = {use.value({'N': str(row.updated_s)})}"
        try:
            self._call("DeleteItem", row).run(
                self._pools.write_client.delete_item,
                **self._at(row),
                ConditionExpression=condition,
                **use.arguments(),
            )
        except ConditionFailed:
            return

    def _at(self, row: WorkerRow) -> dict[str, Any]:
        table, key = (
            (self._lease_table, LEASE_KEY) if self._is_single else (self._rows_table, ROWS_KEY)
        )
        return {"TableName": table, "Key": {key: {"S": row.worker_id}}}

    def _call(self, operation: str, row: WorkerRow) -> SdkCall:
        return SdkCall(f"{operation}: row of {row.worker_id}", writes=True)


def _rows(item: Item, key: str) -> Iterator[WorkerRow]:
    """Read a row; what has no time is none (§2.6: valid only with ``lut``)."""
    updated = item.get(_UPDATED, {}).get("N")
    if updated is not None and item.get(ENTITY_TYPE, {"S": ROW_ENTITY}) == {"S": ROW_ENTITY}:
        support = item.get(_SUPPORT, {}).get("N", "0")
        yield WorkerRow(item[key]["S"], int(float(updated)), int(float(support)))


def _cpu(value: float) -> dict[str, Any]:
    """Return a metric of the type CPU, ``C``: a list of values, here of one."""
    return {"C": {"L": [{"N": str(value)}]}}


def _version(item: Mapping[str, Mapping[str, Any]]) -> str:
    return str(item.get(_VERSION, {}).get("S", ""))
