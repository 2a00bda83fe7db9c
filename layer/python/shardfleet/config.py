"""
The configuration of a fleet: every limit, its default, unit and allowed range.

The construct writes a :class:`FleetConfig` into the Lambda environment with
:meth:`FleetConfig.to_env`, and the Lambda reads it back with :meth:`FleetConfig.from_env`, so the
two cannot disagree. A variable is ``SHARDFLEET_`` plus the upper-cased field name. All problems
are reported at once.

Longer than most modules, and one idea: each option is a field of the one class that is the fleet's
configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Any, Self

from shardfleet.domain.delivery.attempts import POLICIES, RETRIES, FailurePolicy, RetryPolicy
from shardfleet.domain.delivery.filters import RecordFilter
from shardfleet.domain.instants import instant_fault
from shardfleet.errors import ConfigurationError
from shardfleet.values import dataclass

ENV_PREFIX = "SHARDFLEET_"
MANAGER_EVERY_MS = 60_000  # EventBridge Scheduler: once a minute is the most often
# What a manager keeps is older by a wrong clock only, or when three invocations did not come.
KEPT_MOST_MS = 3 * MANAGER_EVERY_MS
LANES_BYTES_MOST = 10 * 1024 * 1024  # As much again as the page that is read meanwhile.
# From a look that finds a record to its handler: a slot is started, and its function is cold.
WAKING_MS = 5_000
ALLOCATOR = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(1024 * 1024 * 1024),
}
"""
Variables of a worker's process, for glibc (mallopt(3)): what a page took, the next one takes again.

By default each thread's memory is a heap of its own, and what is free goes back to the system: the
next page then costs a page fault for each 4 KiB of answer and data, a tenth of the CPU or more,
and each heap keeps room for a page (measured: docs/performance.md, "Memory").
"""


def _number(default: int, doc: str, *, low: int = 0, high: int = 2**53) -> Any:
    return field(default=default, metadata={"doc": doc, "low": low, "high": high})


def _text(default: Any, doc: str) -> Any:
    return (
        field(default=default, metadata={"doc": doc})
        if default is not MISSING
        else field(metadata={"doc": doc})
    )


def _flag(*, default: bool, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


def _choice(default: str, doc: str, *choices: str) -> Any:
    return field(default=default, metadata={"doc": doc, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedConfig:
    """What the construct sets: names, ARNs and the handler."""

    fleet: str = _text(MISSING, "name of the fleet: prefix of worker ids and execution names")
    stream_arn: str = _text(MISSING, "ARN of the stream")
    lease_table: str = _text(MISSING, "name of the lease table (KCL: the application name)")
    state_table: str = _text(MISSING, "name of the fleet-state table")
    state_machine_arn: str = _text("", "ARN of the worker state machine; set for the manager")
    worker_function: str = _text(
        "", "name of the worker's function; set for the manager, where commands look it up"
    )
    handler: str = _text("", "the user's handler, package.module:function; set for the worker")
    handler_function: str = _text(
        "",
        "name or ARN of an existing Lambda function, of any runtime, that is invoked with the "
        "records instead of a handler in the worker; set for the worker",
    )
    handler_contract: str = _choice(
        "auto",
        "how the handler is called: native (batch), event (event, context), or auto: by what it "
        "can be called with, and where both would do, by the names of its parameters",
        "auto",
        "native",
        "event",
    )
    failed_queue_url: str = _text("", "SQS queue for on_exhausted sqs")
    failed_bucket: str = _text(
        "", "S3 bucket for on_exhausted s3 and sns, and for what SQS cannot hold"
    )
    failed_topic_arn: str = _text("", "SNS topic for on_exhausted sns")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertConfig(DeployedConfig):
    """Paces, margins and thresholds of the fleet itself, which few fleets need to change."""

    cycle_ms: int = _number(20_000, "time between manager turns (KCL 2 x failover)", low=200)
    manager_run_ms: int = _number(
        57_000, "how long one manager invocation goes on while anything is awake"
    )
    clock_skew_ms: int = _number(2_000, "clock skew allowed for between two managers")
    start_allowance_ms: int = _number(
        5_000, "extra grace before the first renewal of a fresh assignment"
    )
    assignment: str = _choice(
        "balanced",
        "who gets which lease: balanced by load (utilisation, else throughput, else count), by "
        "count alone, or greedy per worker (as kcl-rust and KCL 2)",
        "balanced",
        "count",
        "greedy",
    )
    kcl_leads: bool = _flag(
        default=True,
        doc="while workers of a KCL 3 share the lease table, its leader gives out the leases and "
        "each slot shows it a row of worker metrics; otherwise the manager does, as if alone",
    )
    kcl_metrics_table: str = _text(
        "",
        "table where a KCL 3.0 to 3.4 keeps its workers' metrics (its WorkerMetricsTableConfig); "
        "empty: the lease table's name and -WorkerMetricStats",
    )
    kcl_state_table: str = _text(
        "",
        "table of its coordinator (CoordinatorStateTableConfig); empty: the lease table's name and "
        "-CoordinatorState",
    )
    graceful_handover: bool = _flag(
        default=True,
        doc="a lease that moves is handed over: the old owner finishes its batch first (KCL "
        "isGracefulLeaseHandoffEnabled); otherwise it is stolen",
    )
    handover_timeout_ms: int = _number(
        30_000,
        "least time a handover is given (KCL gracefulLeaseHandoffTimeoutMillis); never less than "
        "handler_timeout_ms",
        low=1_000,
    )
    rebalance_turns: int = _number(
        3, "load is evened out each so many manager turns (KCL varianceBalancingFrequency)", low=1
    )
    rebalance_percent: int = _number(
        10,
        "a worker whose load differs from the average by more gives away or gets leases (KCL "
        "reBalanceThresholdPercentage)",
        low=1,
        high=100,
    )
    dampening_percent: int = _number(
        60, "part of a surplus that is moved at once (KCL dampeningPercentage)", low=1, high=100
    )
    leases_to_acquire: int = _number(4, "greedy: most leases acquired per turn", low=1)
    target_percent: int = _number(
        70, "utilisation (handler, CPU) of a slot that their number aims at", low=10, high=100
    )
    scale_down_ms: int = _number(
        180_000, "one slot fewer after so long with too many; its leases move first", low=1_000
    )
    parent_poll_ms: int = _number(
        1_000,
        "how often a child waiting for its parents looks (KCL parentShardPollInterval)",
        low=50,
    )
    records_per_read: int = _number(10_000, "GetRecords Limit (quota 10,000)", low=1, high=10_000)
    busy_read_ms: int = _number(
        200, "least time between reads of a shard (quota 5 GetRecords/s per shard)", low=0
    )
    read_bytes_per_s: int = _number(
        2 * 1024 * 1024, "read pace per shard, bytes/s (quota 2 MiB/s)", low=1024
    )
    retry_first_ms: int = _number(200, "first back-off after a throttle or failure", low=1)
    max_retry_ms: int = _number(5_000, "longest back-off", low=1)
    max_aggregate_records: int = _number(
        100_000, "sub-records one aggregate may hold; more is delivered raw", low=1
    )
    max_aggregate_bytes: int = _number(
        64 * 1024 * 1024, "bytes of an aggregate expanded, with keys; more: delivered raw", low=1
    )
    turn_margin_ms: int = _number(
        15_000, "time kept back at the end of an invocation for stopping in good order", low=500
    )
    max_turn_ms: int = _number(
        14 * 60_000, "longest worker turn, even if the invocation could go on", low=1_000
    )
    idle_end_ms: int = _number(
        30_000,
        "a slot with nothing held or assigned ends after this long; longer than the time between "
        "two manager turns, or a new slot would end before it is given anything",
    )
    stream_calls: str = _choice(
        "wire",
        "how the stream and the tables are called: wire (our own signer and decoder for records "
        "and for single items and pages of a table) or boto3 (the SDK for everything)",
        "wire",
        "boto3",
    )
    connection_idle_ms: int = _number(
        5_000,
        "a connection to AWS unused for longer, as while Lambda freezes a function, is not used "
        "again: it may have died without a word",
    )
    io_threads: int = _number(16, "threads for reads of the stream", low=1, high=256)
    metrics_ms: int = _number(
        60_000,
        "a worker writes its metrics this often",
        low=500,
        high=60_000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig(ExpertConfig):
    """
    Everything a fleet can be told: what its owner decides, and what the classes above have.

    Every field's unit is in its name; its one-line doc, range and choices are in the field's
    metadata (``doc``, ``low``, ``high``, ``choices``).

    Raises:
        ConfigurationError: lists every field that is wrong.

    """

    # --- where to begin
    initial_position: str = _choice(
        "TRIM_HORIZON",
        "where leases of a new fleet begin",
        "TRIM_HORIZON",
        "LATEST",
        "AT_TIMESTAMP",
    )
    initial_timestamp_ms: int = _number(0, "epoch ms, for initial_position AT_TIMESTAMP")
    on_trimmed: str = _choice(
        "stop",
        "when a position is older than the retention period: stop the shard, or jump to the "
        "oldest record and state the loss",
        "stop",
        "jump",
    )

    # --- leases and workers
    failover_ms: int = _number(
        10_000,
        "a counter unchanged for this long means a lost worker (KCL failoverTimeMillis)",
        low=1_000,
    )
    leases_per_worker: int = _number(8, "most leases one worker slot holds", low=1, high=1_000)
    min_workers: int = _number(1, "slots kept even when few leases need them")
    max_workers: int = _number(16, "most slots at once", low=1, high=1_000)

    # --- sleep
    sleep: bool = _flag(
        default=False,
        doc="a shard without records is given up by its worker, and the manager looks for the next "
        "one: a fleet without records runs no worker",
    )
    sleep_after_ms: int = _number(
        300_000,
        "with sleep: a shard at whose tip nothing came for so long falls asleep",
        low=1_000,
    )
    max_wake_ms: int = _number(
        60_000,
        "with sleep: how long the first record may wait; the manager runs 5 s of each minute for "
        "60000, nearly all of it for 10000 (its price is told at synth), and looks once a minute "
        "from 65000 on",
        low=10_000,
        high=120_000,
    )

    # --- reading
    idle_read_ms: int = _number(
        1_000,
        "longest pause between reads of an empty shard, reached by doubling: how long its next "
        "record may wait",
        low=200,
    )
    misrouted: str = _choice(
        "deliver",
        "sub-records of an aggregate that belong to another shard: deliver, in-range (they alone "
        "are dropped and counted), or kpl (Java's rule: the whole aggregate is dropped and "
        "counted)",
        "deliver",
        "in-range",
        "kpl",
    )

    # --- handling
    filters: str = _text(
        "",
        "which records reach the handler: a JSON list of patterns as the event source mapping's, "
        "one of which a record must match; the others are done, and counted (records_filtered)",
    )
    max_batch_records: int = _number(1_000, "records per handler call", low=1, high=100_000)
    max_batch_bytes: int = _number(
        4 * 1024 * 1024, "payload bytes per handler call (one larger record goes alone)", low=1
    )
    batch_window_ms: int = _number(
        0,
        "how long records gather before a handler call; what comes of a shard that is behind is "
        "handled at once; a record waits, and the lag is, up to so long (the mapping's "
        "MaximumBatchingWindowInSeconds)",
        high=300_000,
    )
    tumbling_window_ms: int = _number(
        0,
        "length of a shard's tumbling windows, by arrival, whole seconds: each handler call "
        "returns the window's state, which the next one is given, and a last call is for the "
        "result; 0: no windows (the mapping's TumblingWindowInSeconds)",
        high=900_000,
    )
    handler_timeout_ms: int = _number(60_000, "time-out of one handler call", low=100)
    parallelism: int = _number(
        1,
        "handler calls of a shard at once, each with other partition keys, whose records stay in "
        "order (the mapping's ParallelizationFactor); a handler that is no coroutine function runs "
        "in so many threads of its process, shared by its shards",
        low=1,
        high=100,
    )
    handler_threads: int = _number(
        1,
        "threads of a worker process for a handler that is no coroutine function, so that so many "
        "shards are handled at once, never one of them twice (but for parallelism, which has as "
        "many threads at least); only for code that several threads may run; 1: one after another",
        low=1,
        high=100,
    )
    handler_records_per_second: int = _number(
        0,
        "records that each worker process hands to its handler in a second, and most in a call; 0: "
        "as fast as it goes; a fleet hands over up to max_workers times as many",
    )
    on_failure: str = field(
        default="retry",
        metadata={
            "doc": "a batch that failed: retry (together, and one record at a time for the last "
            "attempt), or bisect (in halves until the failing record is alone; a split is no "
            "attempt; the mapping's BisectBatchOnFunctionError)",
            "choices": RETRIES,
        },
    )
    max_attempts: int = _number(
        5, "handler attempts per record before on_exhausted; 0 retries for ever"
    )
    max_record_age_ms: int = _number(
        0,
        "an older record is not handled: on_exhausted, unless stop, at once; 0: however old (the "
        "mapping's MaximumRecordAgeInSeconds)",
    )
    on_exhausted: str = field(
        default="stop",
        metadata={
            "doc": "after max_attempts: stop the shard, skip the record and tell where it stands "
            "(RecordSkipped; its data is kept nowhere), or record in full to SQS or S3 and skip; "
            "sns: in full to S3, and told to a topic",
            "choices": POLICIES,
        },
    )
    max_crashes: int = _number(
        3, "process deaths charged to one shard before max_attempts' policy applies", low=1
    )
    checkpoint: str = _choice(
        "auto",
        "when a record is done: auto (the handler has returned), or manual (it has called "
        "batch.checkpoint, in that call or a later one; the KCL's checkpointer)",
        "auto",
        "manual",
    )
    max_open_records: int = _number(
        100_000,
        "with checkpoint manual, or parallelism: records of a shard that wait for their "
        "checkpoint; with so many, calls bring no more of them",
        low=1,
        high=1_000_000,
    )
    max_open_bytes: int = _number(
        64 * 1024 * 1024,
        "with checkpoint manual, or parallelism: the same for their payload bytes; with "
        "parallelism never more than an answer of GetRecords has, 10 MiB",
        low=1,
    )
    max_open_age_ms: int = _number(
        300_000, "with checkpoint manual: the same once one has waited for so long", low=100
    )
    checkpoint_ms: int = _number(
        1_000, "least time between checkpoints of a lease; the last one is always written"
    )

    # --- objective and money
    lag_objective_ms: int = _number(0, "how far behind a shard may be at most; 0: no objective")
    budget_cents_per_day: int = _number(
        0, "what the fleet itself shall cost a day at most, US cents; 0: no budget"
    )
    over_budget: str = _choice(
        "tell",
        "when a day's budget is spent: tell, or pause all shards until the next day (UTC)",
        "tell",
        "pause",
    )

    # --- what is told
    shard_metrics: bool = _flag(
        default=False,
        doc="metrics per shard too: CloudWatch charges for each metric of each shard",
    )
    otlp_endpoint: str = _text(
        "",
        "URL where an OpenTelemetry collector takes metrics as OTLP/JSON, e.g. "
        "http://localhost:4318/v1/metrics; they go there as well as to CloudWatch",
    )
    log_errors: bool = _flag(
        default=False,
        doc="log, and note where a shard stops, what a failing handler said, not only the kind of "
        "error and the place in the code: it may hold record data",
    )

    def __post_init__(self) -> None:
        """Validate everything and report all problems at once."""
        problems = [p for f in fields(self) for p in _problems(f, getattr(self, f.name))]
        if self.initial_position == "AT_TIMESTAMP" and not self.initial_timestamp_ms:
            problems.append("initial_timestamp_ms: needed for initial_position AT_TIMESTAMP")
        if self.initial_timestamp_ms and (fault := instant_fault(self.initial_timestamp_ms)):
            problems.append(f"initial_timestamp_ms: {fault}")
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            is_open = not {"?", "@"} & set(self.otlp_endpoint)
            found = repr(self.otlp_endpoint) if is_open else "what may hold a token"
            problems.append(f"otlp_endpoint: {found} found, an http(s) URL allowed")
        policy = POLICIES.get(self.on_exhausted)
        problems += [
            f"{needed}: needed for on_exhausted {self.on_exhausted}"
            for needed in ((policy.kept_in, policy.told_to) if policy else ())
            if needed and not getattr(self, needed)
        ]
        if self.max_record_age_ms and policy and policy.stops:
            others = ", ".join(name for name, other in POLICIES.items() if not other.stops)
            problems.append(
                f"on_exhausted: {self.on_exhausted} found, one of {others} needed for "
                "max_record_age_ms: a shard that stops at an old record would stop there again"
            )
        problems += self._contract_problems()
        if 0 < self.lag_objective_ms <= self.batch_window_ms:
            problems.append(
                f"batch_window_ms: {self.batch_window_ms} found, less than lag_objective_ms "
                f"({self.lag_objective_ms}) allowed: records wait that long"
            )
        problems += self._window_problems()
        if self.min_workers > self.max_workers:
            problems.append(
                f"min_workers: {self.min_workers} found, at most max_workers "
                f"({self.max_workers}) allowed"
            )
        if self.sleep and self.sleep_after_ms > self.max_turn_ms // 2:
            problems.append(
                f"sleep_after_ms: {self.sleep_after_ms} found, at most half of max_turn_ms "
                f"({self.max_turn_ms // 2}) allowed: a shard is idle within one turn"
            )
        try:
            RecordFilter(self.filters)
        except ConfigurationError as error:
            problems.append(str(error))
        if problems:
            message = "configuration: " + "; ".join(problems)
            raise ConfigurationError(message)

    def _contract_problems(self) -> list[str]:
        problems = []
        if self.handler and self.handler_function:
            problems.append(f"handler: {self.handler} found, none allowed beside handler_function")
        if self.checkpoint != "manual":
            return problems
        if self.handler_function:
            told = "manual found, auto allowed with handler_function: an event has no checkpoint()"
            problems.append(f"checkpoint: {told}")
        elif self.handler_contract == "event":
            allowed = "native or auto allowed with checkpoint manual: an event has no checkpoint()"
            problems.append(f"handler_contract: event found, {allowed}")
        if self.parallelism > 1:
            problems.append(
                f"parallelism: {self.parallelism} found, 1 allowed with checkpoint manual: a "
                "checkpoint says that all before it is done, and of calls side by side none knows "
                "that of the others; set checkpoint auto, or work on a batch's records side by "
                "side in the handler"
            )
        return problems

    def _window_problems(self) -> list[str]:
        if not self.tumbling_window_ms:
            return []
        problems = []
        if self.tumbling_window_ms % 1_000:
            problems.append(
                f"tumbling_window_ms: {self.tumbling_window_ms} found, whole seconds allowed"
            )
        if self.checkpoint == "manual":
            problems.append(
                "checkpoint: manual found, auto allowed with tumbling_window_ms: records are done "
                "when the state that has them is returned"
            )
        if self.parallelism > 1:
            problems.append(
                f"parallelism: {self.parallelism} found, 1 allowed with tumbling_window_ms: a "
                "shard's window has one state, which each call is given by the one before"
            )
        return problems

    @property
    def probe_ms(self) -> int:
        """Return the time between two looks at a sleeping shard: the rest is for the waking."""
        return min(MANAGER_EVERY_MS, self.max_wake_ms - WAKING_MS)

    @property
    def linger_ms(self) -> int:
        """Return how long a manager's run stays for the looks that the schedule is too rare for."""
        return MANAGER_EVERY_MS - self.probe_ms if self.sleep else 0

    @property
    def max_manager_ms(self) -> int:
        """Return how long a manager's run may last: its turns, its looks, and a waking."""
        looks_ms = self.linger_ms + WAKING_MS if self.sleep else 0
        return max(self.manager_run_ms, looks_ms)

    @property
    def kcl_tables(self) -> tuple[str, str]:
        """Return the names of the tables that a KCL 3.0 to 3.4 has: of metrics, of its state."""
        return (
            self.kcl_metrics_table or f"{self.lease_table}-WorkerMetricStats",
            self.kcl_state_table or f"{self.lease_table}-CoordinatorState",
        )

    @property
    def failure_policy(self) -> FailurePolicy:
        """Return what becomes of a record that has used up its attempts."""
        return POLICIES[self.on_exhausted]

    @property
    def retry_policy(self) -> RetryPolicy:
        """Return how the records of a call that failed go again."""
        return RETRIES[self.on_failure]

    @property
    def max_call_records(self) -> int:
        """Return how many records a handler call has at most."""
        return min(self.max_batch_records, self.handler_records_per_second or 2**53)

    @property
    def calls_at_once(self) -> int:
        """Return how many calls a worker has at once of a handler that is no coroutine function."""
        return max(self.parallelism, self.handler_threads)

    @property
    def max_lanes_bytes(self) -> int:
        """Return how many payload bytes of a shard are open at most, with parallelism."""
        return min(self.max_open_bytes, LANES_BYTES_MOST)

    @property
    def renew_ms(self) -> int:
        """Return the time between renewals: a third of the failover time (KCL)."""
        return self.failover_ms // 3

    @property
    def handover_limit_ms(self) -> int:
        """Return when a handover is forced: its time-out, or a handler's, and a failover time."""
        return max(self.handover_timeout_ms, self.handler_timeout_ms) + self.failover_ms

    def to_env(self) -> dict[str, str]:
        """Return the environment variables that say the same; defaults are left out."""
        return {
            f"{ENV_PREFIX}{f.name.upper()}": _as_text(getattr(self, f.name))
            for f in fields(self)
            if f.default is MISSING or getattr(self, f.name) != f.default
        }

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        """
        Read the configuration back from an environment.

        Raises:
            ConfigurationError: a required variable is missing or a value cannot be read.

        """
        problems: list[str] = []
        values: dict[str, Any] = {}
        for f in fields(cls):
            text = env.get(f"{ENV_PREFIX}{f.name.upper()}")
            if text is None:
                if f.default is MISSING:
                    problems.append(f"{ENV_PREFIX}{f.name.upper()}: missing")
                continue
            try:
                values[f.name] = _from_text(f, text)
            except ValueError:
                problems.append(f"{ENV_PREFIX}{f.name.upper()}: {text!r} found, {f.type} expected")
        if problems:
            message = "environment: " + "; ".join(problems)
            raise ConfigurationError(message)
        return cls(**values)


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _from_text(f: Field[Any], text: str) -> object:
    if f.type == "int":
        return int(text)
    if f.type == "bool":
        if text not in ("true", "false"):
            raise ValueError(text)
        return text == "true"
    return text


def _problems(f: Field[Any], value: object) -> list[str]:
    choices = f.metadata.get("choices")
    if choices and value not in choices:
        return [f"{f.name}: {value!r} found, one of {', '.join(choices)} allowed"]
    if f.type == "int":
        low, high = f.metadata["low"], f.metadata["high"]
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            return [f"{f.name}: {value!r} found, {low} to {high} allowed"]
    if f.type == "str" and not choices and f.default is MISSING and not value:
        return [f"{f.name}: must not be empty"]
    return []
