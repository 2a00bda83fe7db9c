"""The lease table's index by owner: whether there is one, and making it on a KCL 2's table."""

from __future__ import annotations

from typing import Any

from shardfleet.adapters.dynamodb.conditions import Placeholders
from shardfleet.adapters.dynamodb.items import LEASE_KEY, LEASE_OWNER, OWNER_INDEX
from shardfleet.adapters.dynamodb.leases import (
    KEY_ATTRIBUTES,
    OWNER_INDEX_SCHEMA,
    TablePools,
)
from shardfleet.adapters.sdk_errors import ConditionFailed, RefusalIsAnswer, SdkCall, unsettled
from shardfleet.adapters.thread_pool import in_threads_of
from shardfleet.domain.balance.migration import IndexStatus
from shardfleet.errors import ConfigurationError, ShardfleetError

_NO_LEASE = "shardfleet-has-no-lease-of-this-name"


class DynamoDBOwnerIndex:
    """The ``OwnerIndex`` port over one lease table."""

    def __init__(self, table: str, pools: TablePools) -> None:
        """Read nothing yet."""
        self._table = table
        self._pools = pools

    @in_threads_of("_pools.reads")
    def status(self) -> IndexStatus:
        """
        Return how far the index is.

        Raises:
            ConfigurationError: there is no such table, or it is no lease table.
            Throttled: try again later.
            ShardfleetError: the index is in a state that nobody knows.

        """
        table = self._described()
        keys = [(key["AttributeName"], key["KeyType"]) for key in table["KeySchema"]]
        if keys != [(LEASE_KEY, "HASH")]:
            raise ConfigurationError(
                f"table {self._table}: its key is {keys}, a lease table's is {LEASE_KEY} (HASH) "
                "alone; name the application's table when the fleet is deployed"
            )
        found = {each.get("IndexName"): each for each in table.get("GlobalSecondaryIndexes", ())}
        if OWNER_INDEX not in found:
            return IndexStatus.MISSING
        said = found[OWNER_INDEX].get("IndexStatus", IndexStatus.ACTIVE)
        if said not in IndexStatus.__members__:
            raise ShardfleetError(f"DescribeTable {self._table}: its index is {str(said)[:40]!r}")
        return IndexStatus(said)

    @in_threads_of("_pools.writes")
    def make(self) -> None:
        """
        Begin to make the index, with the table's own kind of capacity.

        Raises:
            RightMissing: UpdateTable is not allowed.
            OutcomeUnknown, Throttled: look whether it is there, and try again.

        """
        table = self._described()
        index: dict[str, Any] = dict(OWNER_INDEX_SCHEMA)
        if table.get("BillingModeSummary", {}).get("BillingMode") != "PAY_PER_REQUEST":
            given = self._describing.whole(table["ProvisionedThroughput"])
            names = ("ReadCapacityUnits", "WriteCapacityUnits")
            index["ProvisionedThroughput"] = {name: given[name] for name in names}
        # Another command, or a KCL 3, that begins at the same time has the same index made.
        call = SdkCall(
            f"UpdateTable {self._table}",
            writes=True,
            codes={"ResourceInUseException": RefusalIsAnswer},
        )
        try:
            call.run(
                self._pools.write_client.update_table,
                TableName=self._table,
                AttributeDefinitions=KEY_ATTRIBUTES,
                GlobalSecondaryIndexUpdates=[{"Create": index}],
            )
        except RefusalIsAnswer:
            return

    @in_threads_of("_pools.writes")
    def refusal(self) -> str:
        """Return why this caller may not write leases, "" if it may; nothing is written."""
        use = Placeholders()
        call = SdkCall(f"UpdateItem: lease table {self._table}", writes=True)
        try:
            call.run(
                self._pools.write_client.update_item,
                TableName=self._table,
                Key={LEASE_KEY: {"S": _NO_LEASE}},
                UpdateExpression=f"REMOVE {use.name(LEASE_OWNER)}",
                ConditionExpression=f"attribute_exists({use.name(LEASE_KEY)})",
                **use.arguments(),
            )
        except ConditionFailed:
            return ""
        return f"an item {_NO_LEASE} is in {self._table}"

    @property
    def _describing(self) -> SdkCall:
        codes = {"ResourceNotFoundException": unsettled(ConfigurationError)}
        return SdkCall(f"DescribeTable {self._table}", codes=codes)

    def _described(self) -> Any:
        call = self._describing
        answer = call.run(self._pools.read_client.describe_table, TableName=self._table)
        return call.whole(answer["Table"])
