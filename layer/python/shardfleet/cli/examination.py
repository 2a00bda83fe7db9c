"""
Gathering the facts for `shardfleet doctor`: one look at each part of a deployed fleet.

A part that may not be looked at (no right, or the service fails) is noted as unseen, and the rest
is looked at all the same.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardfleet.cli.fleet_access import FleetAccess
    from shardfleet.config import FleetConfig
    from shardfleet.domain.explain.doctor import Facts, FunctionFacts, StreamFacts, TableFacts
    from shardfleet.domain.explain.fleet_view import FleetReading
    from shardfleet.domain.stream.shards import Shard

_MISSING = (
    "ResourceNotFoundException",
    "AWS.SimpleQueueService.NonExistentQueue",
    "QueueDoesNotExist",
    "StateMachineDoesNotExist",
)


def examine(stack: str, *, now_ms: Callable[[], int] | None = None) -> "Facts":
    """
    Look at everything the stack of a fleet deployed.

    Args:
        stack: its name.
        now_ms: this machine's clock, epoch milliseconds.

    Raises:
        ConfigurationError: there is no such stack, or it holds no fleet.

    """
    from shardfleet.cli.fleet_access import fleet_config, stack_outputs

    outputs = stack_outputs(stack)
    config = fleet_config(stack)
    return _Examination(stack, outputs, config, now_ms or _now_ms).facts()


def _now_ms() -> int:
    return int(time.time() * 1000)


class _Looking:
    """Notes a failure as something unseen; what does not exist is a fact, not a failure."""

    def __init__(self, what: str, unseen: list[tuple[str, str]]) -> None:
        self._what = what
        self._unseen = unseen

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        from botocore.exceptions import ClientError

        from shardfleet.errors import ShardfleetError

        if isinstance(error, ClientError):
            code = error.response["Error"]["Code"]
            if code not in _MISSING:
                message = error.response["Error"].get("Message", "")
                self._unseen.append((self._what, f"{code}: {message}"))
            return True
        if isinstance(error, ShardfleetError):
            self._unseen.append((self._what, str(error)))
            return True
        return False


class _Examination:
    """One look; remembers what could not be seen."""

    def __init__(
        self,
        stack: str,
        outputs: Mapping[str, str],
        config: "FleetConfig",
        now_ms: Callable[[], int],
    ) -> None:
        self._stack = stack
        self._outputs = outputs
        self._config = config
        self._now_ms = now_ms
        self._unseen: list[tuple[str, str]] = []

    def facts(self) -> "Facts":
        from shardfleet.adapters.dynamodb.items import LEASE_KEY
        from shardfleet.domain.explain.doctor import Facts
        from shardfleet.domain.leases.unreadable import stand_ins
        from shardfleet.domain.slots.lags import unread_shards

        config = self._config
        lease_table = self._table(config.lease_table, (LEASE_KEY, "HASH"))
        neighbours, malformed = self._items(lease_table)
        stream, ahead_ms = self._stream()
        reading, shards = self._reading()
        leases = [*reading.leases, *stand_ins(reading.unreadable, shards)] if reading else []
        return Facts(
            config=config,
            lease_table=lease_table,
            state_table=self._table(config.state_table, ("kind", "HASH"), ("id", "RANGE")),
            neighbours=neighbours,
            malformed=malformed,
            stream=stream,
            known_created_ms=self._known_created_ms(),
            clock_ahead_ms=ahead_ms,
            manager=self._function(self._outputs["ManagerFunction"]),
            worker=self._function(self._outputs["WorkerFunction"]),
            schedule=self._schedule(),
            machine=self._machine(),
            failed_queue_exists=self._failed_queue(),
            reading=reading,
            unread_shards=unread_shards(shards, leases) if reading and shards else (),
            unseen=tuple(self._unseen),
        )

    def _looking(self, what: str) -> "_Looking":
        return _Looking(what, self._unseen)

    def _client(self, service: str) -> Any:
        import boto3

        from shardfleet.adapters.clients.aws_clients import client_config, region_of

        region = region_of(self._config.stream_arn) if service == "kinesis" else None
        make: Any = boto3.session.Session().client  # Its overloads name each service by a literal.
        return make(service, region_name=region, config=client_config(1))

    def _table(self, name: str, *wanted: tuple[str, str]) -> "TableFacts":
        from shardfleet.domain.explain.doctor import TableFacts

        with self._looking(f"table {name}"):
            found = self._client("dynamodb").describe_table(TableName=name)["Table"]
            return TableFacts(
                name=name,
                wanted=wanted,
                keys=tuple((key["AttributeName"], key["KeyType"]) for key in found["KeySchema"]),
                indexes={
                    index["IndexName"]: index.get("IndexStatus", "ACTIVE")
                    for index in found.get("GlobalSecondaryIndexes", ())
                },
            )
        return TableFacts(name=name, wanted=wanted)

    def _items(self, table: "TableFacts") -> tuple[dict[str, int], list[str]]:
        from shardfleet.adapters.dynamodb.items import ENTITY_TYPE
        from shardfleet.adapters.dynamodb.leases import leases_among

        if not table.keys:
            return {}, []
        with self._looking(f"items of {table.name}"):
            pages = self._client("dynamodb").get_paginator("scan").paginate(TableName=table.name)
            _, foreign, malformed = leases_among(item for page in pages for item in page["Items"])
            types = Counter(str(item.get(ENTITY_TYPE, {}).get("S", "")) for item in foreign)
            return dict(sorted(types.items())), list(malformed.values())
        return {}, []

    def _stream(self) -> "tuple[StreamFacts | None, int]":
        """Describe the stream; the answer's date tells how far apart the clocks are."""
        from shardfleet.domain.explain.doctor import StreamFacts

        with self._looking("the stream"):
            asked_ms = self._now_ms()
            answer = self._client("kinesis").describe_stream_summary(
                StreamARN=self._config.stream_arn
            )
            now_ms = (asked_ms + self._now_ms()) // 2
            found = answer["StreamDescriptionSummary"]
            stream = StreamFacts(
                status=found["StreamStatus"],
                created_ms=round(found["StreamCreationTimestamp"].timestamp() * 1000),
                distribution=str(found.get("RecordDistributionStrategy", "")),
            )
            return stream, _ahead_ms(answer, now_ms)
        return None, 0

    def _known_created_ms(self) -> int:
        from shardfleet.cli.fleet_access import with_fleet

        async def known(fleet: "FleetAccess") -> int:
            found = await fleet.state.known_incarnation()
            return found.created_ms if found else 0

        with self._looking("the stream on record"):
            return with_fleet(self._stack, known)
        return 0

    def _reading(self) -> "tuple[FleetReading | None, list[Shard]]":
        from shardfleet.cli.fleet_access import with_fleet

        async def read(fleet: "FleetAccess") -> "FleetReading":
            return await fleet.reading()

        async def shards(fleet: "FleetAccess") -> "list[Shard]":
            return list(await fleet.stream.list_shards())

        reading = None
        with self._looking("leases and fleet state"):
            reading = with_fleet(self._stack, read)
        with self._looking("the stream's shards"):
            return reading, with_fleet(self._stack, shards)
        return reading, []

    def _function(self, name: str) -> "FunctionFacts":
        from shardfleet.domain.explain.doctor import FunctionFacts

        with self._looking(f"function {name}"):
            found = self._client("lambda").get_function(FunctionName=name)
            concurrency = found.get("Concurrency", {}).get("ReservedConcurrentExecutions")
            timeout_ms = found["Configuration"]["Timeout"] * 1000
            return FunctionFacts(name=name, timeout_ms=timeout_ms, concurrency=concurrency)
        return FunctionFacts(name=name, timeout_ms=0, concurrency=None)

    def _schedule(self) -> str:
        with self._looking("the manager's schedule"):
            stack = self._client("cloudformation").get_paginator("list_stack_resources")
            names = [
                resource["PhysicalResourceId"]
                for page in stack.paginate(StackName=self._stack)
                for resource in page["StackResourceSummaries"]
                if resource["ResourceType"] == "AWS::Scheduler::Schedule"
            ]
            scheduler = self._client("scheduler")
            states = [scheduler.get_schedule(Name=name)["State"] for name in names]
            return "ENABLED" if "ENABLED" in states else "".join(states[:1])
        return ""

    def _machine(self) -> str:
        with self._looking("the worker's state machine"):
            found = self._client("stepfunctions").describe_state_machine(
                stateMachineArn=self._outputs["StateMachineArn"]
            )
            return str(found["status"])
        return ""

    def _failed_queue(self) -> bool | None:
        if self._config.failure_policy.kept_in != "failed_queue_url":
            return None
        unseen = len(self._unseen)
        with self._looking("the queue for given-up records"):
            url = self._config.failed_queue_url
            self._client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
            return True
        return None if len(self._unseen) > unseen else False


def _ahead_ms(answer: Mapping[str, Any], now_ms: int) -> int:
    """Return how far this clock is ahead; a Date header has whole seconds, of any fraction."""
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    if date is None:
        return 0
    service_ms = round(parsedate_to_datetime(date).timestamp() * 1000)
    return 0 if service_ms <= now_ms < service_ms + 1000 else now_ms - service_ms
