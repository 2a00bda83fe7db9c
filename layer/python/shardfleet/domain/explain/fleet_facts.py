"""What `shardfleet doctor` looks at: facts about a deployed fleet, without a judgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardfleet.config import FleetConfig
from shardfleet.domain.explain.fleet_view import FleetReading


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """
    A DynamoDB table.

    Attributes:
        name: of the table.
        wanted: the keys it must have, attribute name and ``HASH`` or ``RANGE``, in order.
        keys: the keys it has; empty when there is no table.
        indexes: index name to status.

    """

    name: str
    wanted: tuple[tuple[str, str], ...]
    keys: tuple[tuple[str, str], ...] = ()
    indexes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionFacts:
    """
    A Lambda function.

    Attributes:
        name: of the function.
        timeout_ms: its time-out, 0 when there is no such function.
        concurrency: reserved concurrent executions, None when not reserved.

    """

    name: str
    timeout_ms: int
    concurrency: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFacts:
    """
    The stream.

    Attributes:
        status: ``ACTIVE``, ``UPDATING``, ...
        created_ms: creation time, epoch milliseconds.
        distribution: how records are spread, ``""`` when the service did not say.

    """

    status: str
    created_ms: int
    distribution: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """
    Everything that was looked at.

    Attributes:
        config: as the manager has it.
        lease_table: the lease table.
        state_table: the fleet-state table.
        neighbours: items of the lease table that are no leases, by ``entityType``.
        malformed: leases that cannot be read, each with the reason.
        stream: None when there is no such stream.
        known_created_ms: creation time of the stream the fleet began with, 0 unknown.
        clock_ahead_ms: how far this machine's clock is ahead of the service's.
        manager: the manager's function.
        worker: the worker's function.
        schedule: ``ENABLED``, ``DISABLED``, or ``""`` when there is none.
        machine: status of the state machine, ``""`` when there is none.
        failed_queue_exists: None when the policy needs none.
        reading: of both tables; None when a table could not be read.
        unread_shards: open shards to which no lease leads.
        unseen: what could not be looked at, and why.

    """

    config: FleetConfig
    lease_table: TableFacts
    state_table: TableFacts
    neighbours: Mapping[str, int]
    malformed: Sequence[str]
    stream: StreamFacts | None
    known_created_ms: int
    clock_ahead_ms: int
    manager: FunctionFacts
    worker: FunctionFacts
    schedule: str
    machine: str
    failed_queue_exists: bool | None
    reading: FleetReading | None
    unread_shards: Sequence[str]
    unseen: Sequence[tuple[str, str]] = ()
