"""How large an acceptance is, what it is called, and what it may cost at most."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardfleet.config import FleetConfig
from shardfleet.domain.cost.prices import PRICES
from shardfleet.domain.cost.usage import HOURS_PER_MONTH, Costs
from shardfleet.errors import ConfigurationError
from shardfleet_ops.cost.model import Setup, State, per_month

PREFIX = "shardfleet-acceptance-"
_NAME = re.compile(PREFIX + r"[0-9a-f]{6}")

TAG = "shardfleet:acceptance"
"""On all that can have a tag: its value is the name."""

MINUTES_MOST = 20
DESTROY_MS = 7 * 60_000
"""How much of the time is kept for the end."""

START_MS = 30_000
"""A start of a worker, generously: an execution, an environment, the imports."""

WORKER_MB = 512
_MANAGER_MB = 256
_ALARM_METRICS = 6  # of as many alarms; each is billed
# List prices of us-east-1 that no fleet has: a PUT payload unit of 25 KB, an S3 PUT.
_PAYLOAD_UNIT = 0.014 / 1_000_000
_OBJECT_PUT = 0.005 / 1_000
_READS_PER_S = 5  # Kinesis's quota for a shard; each can become one batch, and that one object.


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceSize:
    """
    How much is done.

    Attributes:
        records: put at least.
        feed_ms: time over which so many are put; a step that takes longer adds to them.
        pass_ms: how long is fed after something was done, before it is looked at.
        quiet_ms: how long no record comes, so that environments are frozen meanwhile.
        shards: at the beginning.
        config: fields of the fleet's configuration.
        worker: options of the worker function.
        monitoring: whether the stack has its alarms and its dashboard.

    """

    records: int
    feed_ms: int
    pass_ms: int
    quiet_ms: int
    shards: int
    config: Mapping[str, int]
    worker: Mapping[str, int]
    monitoring: bool

    @property
    def failover_ms(self) -> int:
        """How long a silent worker keeps its leases."""
        return self.config["failover_ms"]

    @property
    def recovery_ms(self) -> int:
        """
        Return how long a record may wait when its worker is lost and another has room.

        Two failover times (it is lost after one by the manager's clock, which began to look up to
        one before) and a start.
        """
        return 2 * self.failover_ms + START_MS

    def context(self, handler: str, environment: Mapping[str, str]) -> dict[str, Any]:
        """Return the stack's settings, as in `cdk.json`, for a handler's folder."""
        return {
            "shardfleet:stream": {"shards": self.shards},
            "shardfleet:handler": handler,
            "shardfleet:function": "probe.s3_probe:handle",
            "shardfleet:config": dict(self.config),
            "shardfleet:worker": {**self.worker, "environment": dict(environment)},
            "shardfleet:monitoring": self.monitoring,
            "shardfleet:removal": "destroy",
        }


WHOLE = AcceptanceSize(
    records=50_000,
    feed_ms=240_000,
    pass_ms=3_000,
    quiet_ms=90_000,
    shards=4,
    config={
        "leases_per_worker": 4,
        "min_workers": 2,
        "failover_ms": 10_000,
        "handler_timeout_ms": 10_000,
        "max_turn_ms": 40_000,
    },
    worker={"memory_mb": WORKER_MB, "timeout_s": 60},
    monitoring=True,
)
"""Two workers with room for each other's shards, and turns short enough to be frozen between."""

SHORT = AcceptanceSize(
    records=2_000,
    feed_ms=20_000,
    pass_ms=1_000,
    quiet_ms=7_000,
    shards=2,
    config={
        "leases_per_worker": 4,
        "min_workers": 2,
        "failover_ms": 3_000,
        "cycle_ms": 1_000,
        "handler_timeout_ms": 5_000,
        "max_turn_ms": 6_000,
    },
    worker={"memory_mb": WORKER_MB, "timeout_s": 30},
    monitoring=False,
)
"""The same steps with little of each."""


def checked_name(name: str) -> str:
    """
    Return a name that an acceptance can have.

    Raises:
        ConfigurationError: it is no such name, so nothing of that name is ours to destroy.

    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"--destroy {name!r}: {PREFIX} and six hexadecimal digits expected, as the run has "
            "printed; nothing else is destroyed"
        )
    return name


def bucket_name(name: str, *, account_id: str, region: str) -> str:
    """Return the bucket of a run: bucket names are shared by all accounts, hence the rest."""
    return f"{name}-{account_id}-{region}"


def price(size: AcceptanceSize) -> Costs:
    """
    Return what a run costs at most, in dollars by item: everything counted for a whole hour.

    A third of that at most is used. KMS and the reading of the notes are not counted: less than
    a cent.
    """
    config = FleetConfig(
        fleet="acceptance",
        stream_arn="-",
        lease_table="-",
        state_table="-",
        **size.config,  # type: ignore[arg-type]  # FleetConfig itself refuses wrong values.
    )
    # A split adds a shard, and what it leaves is billed until the hour is over, as of the merge.
    shards = size.shards + 3
    setup = Setup(
        shards=shards,
        worker_mb=size.worker["memory_mb"],
        manager_mb=_MANAGER_MB,
        worker_timeout_ms=size.worker["timeout_s"] * 1_000,
        alarm_metrics=_ALARM_METRICS * size.monitoring,
        composites=1 * size.monitoring,
        dashboards=1 * size.monitoring,
    )
    fleet = per_month(config, setup, state=State.AWAKE).by_item
    batches = MINUTES_MOST * 60 * _READS_PER_S * shards
    return Costs(
        {
            **{name: dollars / HOURS_PER_MONTH for name, dollars in fleet.items()},
            "stream": shards * PRICES.shard_hour + 2 * size.records * _PAYLOAD_UNIT,
            "notes": batches * _OBJECT_PUT,
        }
    )
