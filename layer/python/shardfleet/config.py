"""
The configuration of a fleet: every limit, its default, unit and allowed range.

The construct writes a :class:`FleetConfig` into the Lambda environment with
:meth:`FleetConfig.to_env`, and the Lambda reads it back with :meth:`FleetConfig.from_env`, so the
two cannot disagree. A variable is ``SHARDFLEET_`` plus the upper-cased field name. All problems
are reported at once.

Longer than most modules, and one idea: each option is a field of the one class that is the fleet's
configuration.
"""

from collections.abc import Collection, Mapping
from functools import cache
from itertools import combinations
from typing import Annotated, Any, Self, get_args

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from shardfleet.domain.delivery.attempts import RETRIES
from shardfleet.domain.delivery.filters import RecordFilter
from shardfleet.domain.delivery.policies import POLICIES, PolicyTerms
from shardfleet.domain.delivery.ways import PLAIN, WAYS, Way
from shardfleet.domain.instants import instant_fault
from shardfleet.errors import ConfigurationError

ENV_PREFIX = "SHARDFLEET_"
ANY = 2**53  # No upper limit: as large a number as JSON holds exactly.
MANAGER_EVERY_MS = 60_000  # EventBridge Scheduler: once a minute is the most often
# What a manager keeps is older by a wrong clock only, or when three invocations did not come.
KEPT_MOST_MS = 3 * MANAGER_EVERY_MS
LANES_BYTES_MOST = 10 * 1024 * 1024  # As much again as the page that is read meanwhile.
# From a look that finds a record to its handler: a slot is started, and its function is cold.
WAKING_MS = 5_000
# What words of options mean, by what is read of them.
CONTRACTS = {"auto": True, "native": True, "event": False}  # The handler may get a batch.
WIRED = {"wire": True, "boto3": False}  # By our own signer and decoder.
INITIAL = {"TRIM_HORIZON": False, "LATEST": False, "AT_TIMESTAMP": True}  # It wants an instant.
TRIMMED = {"stop": True, "jump": False}  # The shard stops.
# All metrics are written, and those of each shard.
WRITTEN = {"few": (False, False), "all": (True, False), "shards": (True, True)}
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


class Range(Struct, frozen=True):
    """From where to where a number is allowed."""

    low: int = 0
    high: int = ANY


class OneOf(Struct, frozen=True):
    """The words of which one is allowed."""

    words: Collection[str]


class Option(Struct, frozen=True):
    """An option of a fleet; its default is `msgspec.NODEFAULT` where it must be given."""

    name: str
    kind: type
    doc: str
    allowed: Range | OneOf | None
    default: Any

    @classmethod
    def of(cls, field: FieldInfo) -> Self:
        """Return the option that a field of a class of the configuration says."""
        kind, doc, *allowed = get_args(field.type)
        by_default = Range() if kind is int else None
        return cls(field.name, kind, doc, next(iter(allowed), by_default), field.default)

    @property
    def is_required(self) -> bool:
        """Return whether it has no default."""
        return self.default is NODEFAULT

    @property
    def variable(self) -> str:
        """Return the environment variable that says it."""
        return f"{ENV_PREFIX}{self.name.upper()}"

    def problem_of(self, value: object) -> str:
        """Return what is wrong with a value: empty where it is allowed."""
        match self.allowed:
            case OneOf(words) if value not in words:
                return f"{self.name}: {value!r} found, one of {', '.join(words)} allowed"
            case Range(low, high):
                is_number = isinstance(value, int) and not isinstance(value, bool)
                if not (is_number and value in range(low, high + 1)):
                    return f"{self.name}: {value!r} found, {low} to {high} allowed"
            case None if self.kind is str and self.is_required and not value:
                return f"{self.name}: must not be empty"
        return ""

    def value_of(self, text: str) -> object:
        """
        Return the value that a text of the environment says.

        Raises:
            ValueError: it says none.

        """
        if self.kind is bool and text not in ("true", "false"):
            raise ValueError(text)
        return text == "true" if self.kind is bool else self.kind(text)


class DeployedConfig(Struct, frozen=True, kw_only=True):
    """What the construct sets: names, ARNs and the handler."""

    fleet: Annotated[str, "name of the fleet: prefix of worker ids and execution names"]
    stream_arn: Annotated[str, "ARN of the stream"]
    consumer_arn: Annotated[
        str,
        "ARN of the stream's registered consumer, by which records are pushed (enhanced fan-out); "
        "empty: shards are polled",
    ] = ""
    lease_table: Annotated[str, "name of the lease table (KCL: the application name)"]
    state_table: Annotated[str, "name of the fleet-state table"]
    state_machine_arn: Annotated[str, "ARN of the worker state machine; set for the manager"] = ""
    worker_function: Annotated[
        str, "name of the worker's function; set for the manager, where commands look it up"
    ] = ""
    handler: Annotated[str, "the user's handler, package.module:function; set for the worker"] = ""
    handler_function: Annotated[
        str,
        "name or ARN of an existing Lambda function, of any runtime, that is invoked with the "
        "records instead of a handler in the worker; set for the worker",
    ] = ""
    handler_contract: Annotated[
        str,
        "how the handler is called: native (batch), event (event, context), or auto: by what it "
        "can be called with, and where both would do, by the names of its parameters",
        OneOf(CONTRACTS),
    ] = "auto"
    failed_queue_url: Annotated[str, "SQS queue for on_exhausted sqs"] = ""
    failed_bucket: Annotated[
        str, "S3 bucket for on_exhausted s3 and sns, and for what SQS cannot hold"
    ] = ""
    failed_topic_arn: Annotated[str, "SNS topic for on_exhausted sns"] = ""
    spill: Annotated[
        bool,
        "Lambda runs only what no process (`shardfleet work --stack`) has taken",
    ] = False


class ExpertConfig(DeployedConfig, frozen=True, kw_only=True):
    """Paces, margins and thresholds of the fleet itself, which few fleets need to change."""

    cycle_ms: Annotated[int, "time between manager turns (KCL 2 x failover)", Range(low=200)] = (
        20_000
    )
    manager_run_ms: Annotated[
        int, "how long one manager invocation goes on while anything is awake"
    ] = 57_000
    clock_skew_ms: Annotated[int, "clock skew allowed for between two managers"] = 2_000
    start_allowance_ms: Annotated[
        int, "extra grace before the first renewal of a fresh assignment"
    ] = 5_000
    assignment: Annotated[
        str,
        "who gets which lease: balanced by load (utilisation, else throughput, else count), by "
        "count alone, or greedy per worker (as kcl-rust and KCL 2)",
        OneOf(("balanced", "count", "greedy")),
    ] = "balanced"
    kcl_leads: Annotated[
        bool,
        "while workers of a KCL 3 share the lease table, its leader gives out the leases and "
        "each slot shows it a row of worker metrics; otherwise the manager does, as if alone",
    ] = True
    kcl_metrics_table: Annotated[
        str,
        "table where a KCL 3.0 to 3.4 keeps its workers' metrics (its WorkerMetricsTableConfig); "
        "empty: the lease table's name and -WorkerMetricStats",
    ] = ""
    kcl_state_table: Annotated[
        str,
        "table of its coordinator (CoordinatorStateTableConfig); empty: the lease table's name and "
        "-CoordinatorState",
    ] = ""
    graceful_handover: Annotated[
        bool,
        "a lease that moves is handed over: the old owner finishes its batch first (KCL "
        "isGracefulLeaseHandoffEnabled); otherwise it is stolen",
    ] = True
    handover_timeout_ms: Annotated[
        int,
        "least time a handover is given (KCL gracefulLeaseHandoffTimeoutMillis); never less than "
        "handler_timeout_ms",
        Range(low=1_000),
    ] = 30_000
    rebalance_turns: Annotated[
        int,
        "load is evened out each so many manager turns (KCL varianceBalancingFrequency)",
        Range(low=1),
    ] = 3
    rebalance_percent: Annotated[
        int,
        "a worker whose load differs from the average by more gives away or gets leases (KCL "
        "reBalanceThresholdPercentage)",
        Range(low=1, high=100),
    ] = 10
    dampening_percent: Annotated[
        int,
        "part of a surplus that is moved at once (KCL dampeningPercentage)",
        Range(low=1, high=100),
    ] = 60
    leases_to_acquire: Annotated[int, "greedy: most leases acquired per turn", Range(low=1)] = 4
    target_percent: Annotated[
        int,
        "utilisation (handler, CPU) of a slot that their number aims at",
        Range(low=10, high=100),
    ] = 70
    scale_down_ms: Annotated[
        int, "one slot fewer after so long with too many; its leases move first", Range(low=1_000)
    ] = 180_000
    spill_after_ms: Annotated[
        int,
        "with spill: how long a slot waits for a process, if there is any",
        Range(low=1_000),
    ] = 10_000
    parent_poll_ms: Annotated[
        int,
        "how often a child waiting for its parents looks (KCL parentShardPollInterval)",
        Range(low=50),
    ] = 1_000
    records_per_read: Annotated[
        int, "GetRecords Limit (quota 10,000)", Range(low=1, high=10_000)
    ] = 10_000
    busy_read_ms: Annotated[
        int, "least time between reads of a shard (quota 5 GetRecords/s per shard)", Range(low=0)
    ] = 200
    read_bytes_per_s: Annotated[
        int, "read pace per shard, bytes/s (quota 2 MiB/s)", Range(low=1024)
    ] = 2 * 1024 * 1024
    retry_first_ms: Annotated[int, "first back-off after a throttle or failure", Range(low=1)] = 200
    max_retry_ms: Annotated[int, "longest back-off", Range(low=1)] = 5_000
    max_aggregate_records: Annotated[
        int, "sub-records one aggregate may hold; more is delivered raw", Range(low=1)
    ] = 100_000
    max_aggregate_bytes: Annotated[
        int, "bytes of an aggregate expanded, with keys; more: delivered raw", Range(low=1)
    ] = 64 * 1024 * 1024
    turn_margin_ms: Annotated[
        int, "time kept back at the end of an invocation for stopping in good order", Range(low=500)
    ] = 15_000
    max_turn_ms: Annotated[
        int, "longest worker turn, even if the invocation could go on", Range(low=1_000)
    ] = 14 * 60_000
    idle_end_ms: Annotated[
        int,
        "a slot with nothing held or assigned ends after this long; longer than the time between "
        "two manager turns, or a new slot would end before it is given anything",
    ] = 30_000
    stream_calls: Annotated[
        str,
        "how the stream and the tables are called: wire (our own signer and decoder for records "
        "and for single items and pages of a table) or boto3 (the SDK for everything)",
        OneOf(WIRED),
    ] = "wire"
    connection_idle_ms: Annotated[
        int,
        "a connection to AWS unused for longer, as while Lambda freezes a function, is not used "
        "again: it may have died without a word",
    ] = 5_000
    io_threads: Annotated[int, "threads for reads of the stream", Range(low=1, high=256)] = 16
    metrics_ms: Annotated[
        int, "a worker writes its metrics this often", Range(low=500, high=60_000)
    ] = 60_000


class FleetConfig(ExpertConfig, frozen=True, kw_only=True):
    """
    Everything a fleet can be told: what its owner decides, and what the classes above have.

    Every field's unit is in its name; what it means, and what is allowed, stands in its annotation,
    and in :func:`options`.

    Raises:
        ConfigurationError: lists every field that is wrong.

    """

    # --- where to begin
    initial_position: Annotated[str, "where leases of a new fleet begin", OneOf(INITIAL)] = (
        "TRIM_HORIZON"
    )
    initial_timestamp_ms: Annotated[int, "epoch ms, for initial_position AT_TIMESTAMP"] = 0
    on_trimmed: Annotated[
        str,
        "when a position is older than the retention period: stop the shard, or jump to the "
        "oldest record and state the loss",
        OneOf(TRIMMED),
    ] = "stop"

    # --- leases and workers
    failover_ms: Annotated[
        int,
        "a counter unchanged for this long means a lost worker (KCL failoverTimeMillis)",
        Range(low=1_000),
    ] = 10_000
    leases_per_worker: Annotated[
        int, "most leases one worker slot holds", Range(low=1, high=1_000)
    ] = 8
    min_workers: Annotated[int, "slots kept even when few leases need them"] = 1
    max_workers: Annotated[int, "most slots at once", Range(low=1, high=1_000)] = 16

    # --- sleep
    sleep: Annotated[
        bool,
        "a shard without records is given up by its worker, and the manager looks for the next "
        "one: a fleet without records runs no worker",
    ] = False
    sleep_after_ms: Annotated[
        int,
        "with sleep: a shard at whose tip nothing came for so long falls asleep",
        Range(low=1_000),
    ] = 300_000
    max_wake_ms: Annotated[
        int,
        "with sleep: how long the first record may wait; the manager runs 5 s of each minute for "
        "60000, nearly all of it for 10000 (its price is told at synth), and looks once a minute "
        "from 65000 on",
        Range(low=10_000, high=120_000),
    ] = 60_000

    # --- reading
    idle_read_ms: Annotated[
        int,
        "longest pause between reads of an empty shard, reached by doubling: how long its next "
        "record may wait",
        Range(low=200),
    ] = 1_000
    misrouted: Annotated[
        str,
        "sub-records of an aggregate that belong to another shard: deliver, in-range (they alone "
        "are dropped and counted), or kpl (Java's rule: the whole aggregate is dropped and "
        "counted)",
        OneOf(("deliver", "in-range", "kpl")),
    ] = "deliver"

    # --- handling
    filters: Annotated[
        str,
        "which records reach the handler: a JSON list of patterns as the event source mapping's, "
        "one of which a record must match; the others are done, and counted (records_filtered)",
    ] = ""
    max_batch_records: Annotated[int, "records per handler call", Range(low=1, high=100_000)] = (
        1_000
    )
    max_batch_bytes: Annotated[
        int, "payload bytes per handler call (one larger record goes alone)", Range(low=1)
    ] = 4 * 1024 * 1024
    batch_window_ms: Annotated[
        int,
        "how long records gather before a handler call; what comes of a shard that is behind is "
        "handled at once; a record waits, and the lag is, up to so long (the mapping's "
        "MaximumBatchingWindowInSeconds)",
        Range(high=300_000),
    ] = 0
    tumbling_window_ms: Annotated[
        int,
        "length of a shard's tumbling windows, by arrival, whole seconds: each handler call "
        "returns the window's state, which the next one is given, and a last call is for the "
        "result; 0: no windows (the mapping's TumblingWindowInSeconds)",
        Range(high=900_000),
    ] = 0
    handler_timeout_ms: Annotated[int, "time-out of one handler call", Range(low=100)] = 60_000
    parallelism: Annotated[
        int,
        "handler calls of a shard at once, each with other partition keys, whose records stay in "
        "order (the mapping's ParallelizationFactor); a handler that is no coroutine function runs "
        "in so many threads of its process, shared by its shards",
        Range(low=1, high=100),
    ] = 1
    handler_threads: Annotated[
        int,
        "threads of a worker process for a handler that is no coroutine function, so that so many "
        "shards are handled at once, never one of them twice (but for parallelism, which has as "
        "many threads at least); only for code that several threads may run; 1: one after another",
        Range(low=1, high=100),
    ] = 1
    handler_records_per_second: Annotated[
        int,
        "records that each worker process hands to its handler in a second, and most in a call; 0: "
        "as fast as it goes; a fleet hands over up to max_workers times as many",
    ] = 0
    on_failure: Annotated[
        str,
        "a batch that failed: retry (together, and one record at a time for the last "
        "attempt), or bisect (in halves until the failing record is alone; a split is no "
        "attempt; the mapping's BisectBatchOnFunctionError)",
        OneOf(RETRIES),
    ] = "retry"
    max_attempts: Annotated[
        int, "handler attempts per record before on_exhausted; 0 retries for ever"
    ] = 5
    max_record_age_ms: Annotated[
        int,
        "an older record is not handled: on_exhausted, unless stop, at once; 0: however old (the "
        "mapping's MaximumRecordAgeInSeconds)",
    ] = 0
    on_exhausted: Annotated[
        str,
        "after max_attempts: stop the shard, skip the record and tell where it stands "
        "(RecordSkipped; its data is kept nowhere), or record in full to SQS or S3 and skip; "
        "sns: in full to S3, and told to a topic",
        OneOf(POLICIES),
    ] = "stop"
    max_crashes: Annotated[
        int, "process deaths charged to one shard before max_attempts' policy applies", Range(low=1)
    ] = 3
    checkpoint: Annotated[
        str,
        "when a record is done: auto (the handler has returned), or manual (it has called "
        "batch.checkpoint, in that call or a later one; the KCL's checkpointer)",
        OneOf(("auto", "manual")),
    ] = "auto"
    max_open_records: Annotated[
        int,
        "with checkpoint manual, or parallelism: records of a shard that wait for their "
        "checkpoint; with so many, calls bring no more of them",
        Range(low=1, high=1_000_000),
    ] = 100_000
    max_open_bytes: Annotated[
        int,
        "with checkpoint manual, or parallelism: the same for their payload bytes; with "
        "parallelism never more than an answer of GetRecords has, 10 MiB",
        Range(low=1),
    ] = 64 * 1024 * 1024
    max_open_age_ms: Annotated[
        int, "with checkpoint manual: the same once one has waited for so long", Range(low=100)
    ] = 300_000
    checkpoint_ms: Annotated[
        int,
        "least time between checkpoints of a lease, renewals among them, which store it as well; "
        "at once at a stop, a handover, the end, and after a death",
    ] = 5_000

    lag_objective_ms: Annotated[
        int, "how far behind a shard may be at most before its slot asks for another; 0: a minute"
    ] = 0

    # --- what is told
    metrics: Annotated[
        str,
        "which metrics CloudWatch gets, which charges for each: few (ten), all (some thirty, those "
        "of workers each 10 s), or shards (and three of each shard)",
        OneOf(WRITTEN),
    ] = "few"
    otlp_endpoint: Annotated[
        str,
        "URL where an OpenTelemetry collector takes metrics as OTLP/JSON, e.g. "
        "http://localhost:4318/v1/metrics; they go there as well as to CloudWatch",
    ] = ""
    log_errors: Annotated[
        bool,
        "log, and note where a shard stops, what a failing handler said, not only the kind of "
        "error and the place in the code: it may hold record data",
    ] = False

    def __post_init__(self) -> None:
        """Validate everything and report all problems at once."""
        values = ((option, getattr(self, option.name)) for option in options())
        problems = [problem for option, value in values if (problem := option.problem_of(value))]
        if INITIAL.get(self.initial_position) and not self.initial_timestamp_ms:
            problems.append(
                f"initial_timestamp_ms: needed for initial_position {self.initial_position}"
            )
        if self.initial_timestamp_ms and (fault := instant_fault(self.initial_timestamp_ms)):
            problems.append(f"initial_timestamp_ms: {fault}")
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            is_open = not {"?", "@"} & set(self.otlp_endpoint)
            found = repr(self.otlp_endpoint) if is_open else "what may hold a token"
            problems.append(f"otlp_endpoint: {found} found, an http(s) URL allowed")
        terms = POLICIES.get(self.on_exhausted)
        problems += [
            f"{needed}: needed for on_exhausted {self.on_exhausted}"
            for needed in (terms.destination.value if terms else ())
            if not getattr(self, needed)
        ]
        if self.max_record_age_ms and terms and terms.stops:
            others = ", ".join(name for name, other in POLICIES.items() if not other.stops)
            problems.append(
                f"on_exhausted: {self.on_exhausted} found, one of {others} needed for "
                "max_record_age_ms: a shard that stops at an old record would stop there again"
            )
        problems += self._way_problems()
        if 0 < self.lag_objective_ms <= self.batch_window_ms:
            problems.append(
                f"batch_window_ms: {self.batch_window_ms} found, less than lag_objective_ms "
                f"({self.lag_objective_ms}) allowed: records wait that long"
            )
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

    def _way_problems(self) -> list[str]:
        problems = []
        if self.handler and self.handler_function:
            problems.append(f"handler: {self.handler} found, none allowed beside handler_function")
        if self.spill and self.handler_function:
            problems.append(
                "spill: true found, none allowed with handler_function: a process has no use for "
                "a function, which is paid for whoever invokes it"
            )
        if self.tumbling_window_ms % 1_000:
            problems.append(
                f"tumbling_window_ms: {self.tumbling_window_ms} found, whole seconds allowed"
            )
        for way in self._chosen_ways:
            if way.handler_checkpoints:
                problems += self._checkpoint_problems(way)
        problems += [
            f"{way.option}: {getattr(self, way.option)} found, {way.off} allowed with "
            f"{other.option} {getattr(self, other.option)}: {other.alone}"
            for way, other in combinations(self._chosen_ways, 2)
        ]
        return problems

    def _checkpoint_problems(self, way: Way) -> list[str]:
        found, why = getattr(self, way.option), "an event has no checkpoint()"
        if self.handler_function:
            return [f"{way.option}: {found} found, {way.off} allowed with handler_function: {why}"]
        if CONTRACTS.get(self.handler_contract, True):
            return []
        others = " or ".join(name for name in reversed(CONTRACTS) if CONTRACTS[name])
        given = f"handler_contract: {self.handler_contract} found, {others} allowed"
        return [f"{given} with {way.option} {found}: {why}"]

    @property
    def _chosen_ways(self) -> list[Way]:
        return [way for way in WAYS if getattr(self, way.option) != way.off]

    @property
    def way(self) -> Way:
        """Return what its way of delivering asks of the rest."""
        return next(iter(self._chosen_ways), PLAIN)

    @property
    def writes_all_metrics(self) -> bool:
        """Return whether CloudWatch gets more than the ten metrics."""
        return WRITTEN[self.metrics][0]

    @property
    def writes_shard_metrics(self) -> bool:
        """Return whether CloudWatch gets metrics of each shard."""
        return WRITTEN[self.metrics][1]

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
    def policy_terms(self) -> PolicyTerms:
        """Return what becomes of a record that has used up its attempts."""
        return POLICIES[self.on_exhausted]

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
            option.variable: _as_text(getattr(self, option.name))
            for option in options()
            if option.is_required or getattr(self, option.name) != option.default
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
        for option in options():
            text = env.get(option.variable)
            if text is None:
                if option.is_required:
                    problems.append(f"{option.variable}: missing")
                continue
            try:
                values[option.name] = option.value_of(text)
            except ValueError:
                kind = option.kind.__name__
                problems.append(f"{option.variable}: {text!r} found, {kind} expected")
        if problems:
            message = "environment: " + "; ".join(problems)
            raise ConfigurationError(message)
        return cls(**values)


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


@cache
def options() -> tuple[Option, ...]:
    """Return every option: those that the construct sets, those for experts, and the others."""
    return tuple(Option.of(each) for each in fields(FleetConfig))
