"""The fleets whose price is said at synthesis, by `shardfleet cost` and in docs/cost.md."""

from dataclasses import dataclass, field, replace

from shardfleet.config import FleetConfig
from shardfleet_ops.cost.model import Setup, State, per_month, processes_per_month
from shardfleet_processes.process import OF_PROCESSES

# What the construct makes by default; tests/cdk/test_monitoring.py holds them.
WATCH = {"alarm_metrics": 6, "composites": 1, "dashboards": 1}
# In ten minutes of `make cost` so: what a worker does once a turn comes twenty times, not once or
# never.
OFTEN = {"max_turn_ms": 30_000, "handler_timeout_ms": 15_000}


@dataclass(frozen=True, kw_only=True)
class PricedFleet:
    """
    A fleet, and for `make cost` how fast its stream is fed.

    Attributes:
        processes: of `shardfleet work`, so many, in the place of Lambda; 0: a stack.
        most: what it may cost beside the dashboard, by its defaults, dollars a month.

    """

    name: str
    shards: int
    most: float = 0.0
    worker_mb: int = 512
    processes: int = 0
    config: dict = field(default_factory=dict)
    state: State = State.CALM
    records_per_s: float = 0.0
    record_bytes: int = 100

    @property
    def often(self):
        """Return the fleet with everything that it does coming often."""
        has_turns = not self.processes and self.state is not State.ASLEEP
        return replace(self, config={**self.config, **(OFTEN if has_turns else {})})

    @property
    def fleet_config(self):
        """Return its configuration."""
        names = {"fleet": "f", "stream_arn": "a", "lease_table": "l", "state_table": "s"}
        return FleetConfig(**names, **(OF_PROCESSES if self.processes else {}), **self.config)

    @property
    def costs(self):
        """Return a month of it, as the construct deploys it, or as processes."""
        if self.processes:
            setup = Setup(shards=self.shards, workers=self.processes)
            return processes_per_month(self.fleet_config, setup)
        setup = Setup(shards=self.shards, worker_mb=self.worker_mb, **WATCH)
        return per_month(self.fleet_config, setup, state=self.state)


COUNTED = (
    PricedFleet(
        name="2 shards, a record a second", shards=2, most=16, worker_mb=256, records_per_s=1
    ),
    PricedFleet(
        name="2 shards, asleep",
        shards=2,
        most=3.5,
        worker_mb=256,
        config={"sleep": True, "sleep_after_ms": 3_000},
        state=State.ASLEEP,
    ),
    # Half of what a shard takes in a second, 1,000 records; their size changes no item.
    PricedFleet(name="8 shards, half full", shards=8, most=28, records_per_s=4_000),
)
OF_TWO_PROCESSES = PricedFleet(
    name="8 shards, 2 processes", shards=8, most=8.5, processes=2, records_per_s=4_000
)
FLEETS = (
    *COUNTED,
    PricedFleet(name="1 shard", shards=1),
    PricedFleet(name="24 shards, 8 a worker", shards=24, worker_mb=1_024),
    PricedFleet(name="100 shards, 50 a worker", shards=100, config={"leases_per_worker": 50}),
)
