"""
The two tables: KCL's lease table, and the fleet's own state.

The lease table has the KCL's schema and index and nothing of ours, so that a KCL application can
share it or take it over. `Table`, not `TableV2`: the latter refuses a customer key in a stack
without a fixed region.
"""

from __future__ import annotations

from aws_cdk import aws_dynamodb as ddb
from aws_cdk import aws_kms as kms
from constructs import Construct

from shardfleet_cdk.options import Operations

# KCL 3, LeaseManagementConfig and DynamoDBLeaseRefresher: key, index and its projection.
LEASE_KEY = "leaseKey"
LEASE_OWNER = "leaseOwner"
OWNER_INDEX = "LeaseOwnerToLeaseKeyIndex"
# The fleet-state table's keys, as the fleet-state adapter reads them.
STATE_KIND = "kind"
STATE_ID = "id"
STATE_EXPIRES = "expires"


def lease_table(scope: Construct, construct_id: str, *, operations: Operations) -> ddb.Table:
    """
    Make a lease table.

    The index projects keys only: renewals then do not touch it, which halves their price.
    """
    table = _table(
        scope, construct_id, partition_key=LEASE_KEY, sort_key=None, operations=operations
    )
    table.add_global_secondary_index(
        index_name=OWNER_INDEX,
        partition_key=_text(LEASE_OWNER),
        sort_key=_text(LEASE_KEY),
        projection_type=ddb.ProjectionType.KEYS_ONLY,
    )
    return table


def state_table(scope: Construct, construct_id: str, *, operations: Operations) -> ddb.Table:
    """Make a fleet-state table: slots, sightings, pins, notes, prompts; kept turns expire."""
    return _table(
        scope,
        construct_id,
        partition_key=STATE_KIND,
        sort_key=STATE_ID,
        time_to_live=STATE_EXPIRES,
        operations=operations,
    )


def _text(name: str) -> ddb.Attribute:
    return ddb.Attribute(name=name, type=ddb.AttributeType.STRING)


def _table(
    scope: Construct,
    construct_id: str,
    *,
    partition_key: str,
    sort_key: str | None,
    operations: Operations,
    time_to_live: str | None = None,
) -> ddb.Table:
    key: kms.IKey | None = operations.encryption_key
    return ddb.Table(
        scope,
        construct_id,
        partition_key=_text(partition_key),
        sort_key=_text(sort_key) if sort_key else None,
        billing_mode=ddb.BillingMode.PAY_PER_REQUEST,
        point_in_time_recovery_specification=ddb.PointInTimeRecoverySpecification(
            point_in_time_recovery_enabled=True
        ),
        encryption=ddb.TableEncryption.CUSTOMER_MANAGED if key else None,
        encryption_key=key,
        time_to_live_attribute=time_to_live,
        removal_policy=operations.removal_policy,
        deletion_protection=operations.protects_tables,
    )
