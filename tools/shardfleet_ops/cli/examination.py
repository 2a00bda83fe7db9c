"""
Gathering the facts for `shardfleet doctor`: one look at each part of a deployed fleet.

A part that may not be looked at (no right, or the service fails) is noted as unseen, and the rest
is looked at all the same. Imported by the command when it runs, not before.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import boto3
from botocore.exceptions import ClientError
from msgspec.structs import replace

from shardfleet.adapters.clients.aws_clients import client_config, region_of
from shardfleet.adapters.dynamodb.items import ENTITY_TYPE, LEASE_KEY
from shardfleet.adapters.dynamodb.kcl3 import ROWS_KEY, STATE_KEY
from shardfleet.adapters.dynamodb.leases import LeasesAmong
from shardfleet.adapters.kinesis.polling import service_time_ms
from shardfleet.domain.balance.kcl3 import Kcl3, of_our_application
from shardfleet.domain.delivery.policies import Destination
from shardfleet.domain.leases.foreign_leases import set_apart
from shardfleet.domain.leases.lease import Survey
from shardfleet.domain.leases.unreadable import stand_ins
from shardfleet.domain.slots.lags import unread_shards
from shardfleet.domain.stream.shards import Shard, ShardGraph
from shardfleet.errors import ShardfleetError, StreamGone
from shardfleet_ops.cli.fleet_access import FleetAccess, with_fleet
from shardfleet_ops.cli.fleets import FleetName, find_functions
from shardfleet_ops.explain.doctor import Facts, FunctionFacts, StreamFacts, TableFacts
from shardfleet_ops.explain.fleet_view import FleetReading

_T = TypeVar("_T")
_MISSING = (
    "ResourceNotFoundException",
    "AWS.SimpleQueueService.NonExistentQueue",
    "QueueDoesNotExist",
    "StateMachineDoesNotExist",
)


def examine(name: FleetName) -> Facts:
    """
    Look at everything that a fleet's construct deployed.

    Raises:
        ConfigurationError: there is no such fleet.

    """
    return _Examination(name).facts()


class _Examination:
    """One look; remembers what could not be seen."""

    def __init__(self, name: FleetName) -> None:
        self._name = name
        self._found = find_functions(name)
        self._config = self._found.config
        self._unseen: list[tuple[str, str]] = []

    def facts(self) -> Facts:
        config, see, name = self._config, self._see, self._name
        lease_table = self._table(config.lease_table, (LEASE_KEY, "HASH"))
        state_table = self._table(config.state_table, ("kind", "HASH"), ("id", "RANGE"))
        what = f"items of {lease_table.name}"
        neighbours = see(what, lambda: self._neighbours(lease_table), {})
        stream, ahead_ms = see("the stream", self._stream, (None, 0))
        known = reading = None
        kcl3 = Kcl3()
        if lease_table.keys and state_table.keys:  # Else what is missing has been named.
            known = see(
                "the stream on record",
                lambda: with_fleet(name, lambda fleet: fleet.state.known_incarnation()),
                None,
            )
            reading = see(
                "leases and fleet state", lambda: with_fleet(name, lambda f: f.reading()), None
            )
            kcl3 = see("what a KCL 3 keeps", lambda: with_fleet(name, _kcl3), kcl3)
        shards = see(
            "the stream's shards",
            lambda: with_fleet(name, lambda fleet: fleet.stream.list_shards()),
            (),
        )
        if reading:
            reading = _apart(reading, shards)
        leases = [*reading.leases, *stand_ins(reading.unreadable, shards)] if reading else []
        return Facts(
            config=config,
            lease_table=lease_table,
            state_table=state_table,
            neighbours=neighbours,
            stream=stream,
            known_created_ms=known.created_ms if known else 0,
            clock_ahead_ms=ahead_ms,
            manager=self._function(self._found.manager),
            worker=self._function(config.worker_function),
            schedule=see("the manager's schedule", self._schedule, ""),
            machine=see("the worker's state machine", self._machine, ""),
            failed_queue_exists=see("the queue for given-up records", self._failed_queue, None),
            reading=reading,
            unread_shards=unread_shards(shards, leases) if reading and shards else (),
            unreserved_concurrency=see("the account's concurrency", self._unreserved, None),
            kcl3=kcl3,
            kcl_tables=[
                self._table(table, (key, "HASH"))
                for table, key in zip(config.kcl_tables, (ROWS_KEY, STATE_KEY), strict=True)
            ],
            unseen=tuple(self._unseen),
        )

    def _see(self, what: str, look: Callable[[], _T], otherwise: Any) -> _T:
        """Look; what does not exist is a fact, any other failure something unseen: otherwise."""
        try:
            return look()
        except ClientError as error:
            if not _is_missing(error):
                message = error.response["Error"].get("Message", "")
                self._unseen.append((what, f"{error.response['Error']['Code']}: {message}"))
        except StreamGone:
            pass
        except ShardfleetError as error:
            self._unseen.append((what, str(error)))
        except KeyError as error:  # By its model a service may leave out nearly anything.
            self._unseen.append((what, f"the answer lacks {error}"))
        return cast("_T", otherwise)

    def _client(self, service: str) -> Any:
        region = region_of(self._config.stream_arn) if service == "kinesis" else None
        make: Any = boto3.session.Session().client  # Its overloads name each service by a literal.
        return make(service, region_name=region, config=client_config(1))

    def _table(self, name: str, *wanted: tuple[str, str]) -> TableFacts:
        def look() -> TableFacts:
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

        return self._see(f"table {name}", look, TableFacts(name=name, wanted=wanted))

    def _neighbours(self, table: TableFacts) -> dict[str, int]:
        if not table.keys:
            return {}
        pages = self._client("dynamodb").get_paginator("scan").paginate(TableName=table.name)
        found = LeasesAmong(item for page in pages for item in page["Items"])
        types = Counter(str(item.get(ENTITY_TYPE, {}).get("S", "")) for item in found.no_leases)
        return dict(sorted(types.items()))

    def _stream(self) -> tuple[StreamFacts | None, int]:
        """Describe the stream; the answer's date tells how far apart the clocks are."""
        client, asked_ms = self._client("kinesis"), _now_ms()
        answer = client.describe_stream_summary(StreamARN=self._config.stream_arn)
        now_ms = (asked_ms + _now_ms()) // 2
        found = answer["StreamDescriptionSummary"]
        stream = StreamFacts(
            status=found["StreamStatus"],
            created_ms=round(found["StreamCreationTimestamp"].timestamp() * 1000),
            distribution=str(found.get("RecordDistributionStrategy", "")),
        )
        return stream, _ahead_ms(answer, now_ms)

    def _function(self, name: str) -> FunctionFacts:
        def look() -> FunctionFacts:
            found = self._client("lambda").get_function(FunctionName=name)
            concurrency = found.get("Concurrency", {}).get("ReservedConcurrentExecutions")
            timeout_ms = found["Configuration"]["Timeout"] * 1000
            return FunctionFacts(name=name, timeout_ms=timeout_ms, concurrency=concurrency)

        none = FunctionFacts(name=name, timeout_ms=0, concurrency=None)
        return self._see(f"function {name}", look, none)

    def _unreserved(self) -> int:
        limits = self._client("lambda").get_account_settings()["AccountLimit"]
        return int(limits["UnreservedConcurrentExecutions"])

    def _schedule(self) -> str:
        names = self._found.of_type("AWS::Scheduler::Schedule")
        scheduler = self._client("scheduler")
        states = [scheduler.get_schedule(Name=name)["State"] for name in names]
        return "ENABLED" if "ENABLED" in states else "".join(states[:1])

    def _machine(self) -> str:
        arn = self._config.state_machine_arn
        found = self._client("stepfunctions").describe_state_machine(stateMachineArn=arn)
        return str(found["status"])

    def _failed_queue(self) -> bool | None:
        """Return whether the queue is there; None when the policy needs none."""
        if self._config.policy_terms.destination is not Destination.QUEUE:
            return None
        url = self._config.failed_queue_url
        try:
            self._client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        except ClientError as error:
            if _is_missing(error):
                return False
            raise
        return True


def _apart(reading: FleetReading, shards: Sequence[Shard]) -> FleetReading:
    """Return a reading without the leases of shards that the stream never had."""
    survey = Survey(leases=tuple(reading.leases), foreign_leases=tuple(reading.foreign_leases))
    found = set_apart(survey, ShardGraph.of(shards), known=reading.sightings.keys())
    return replace(reading, leases=found.leases, foreign_leases=found.foreign_leases)


async def _kcl3(fleet: FleetAccess) -> Kcl3:
    survey = await fleet.leases.survey()
    ours = {each.slot.worker_id for each in await fleet.state.slots()}
    return of_our_application(await fleet.kcl3.found(survey.foreign), survey, ours=ours)


def _is_missing(error: ClientError) -> bool:
    return error.response["Error"]["Code"] in _MISSING


def _now_ms() -> int:
    return int(time.time() * 1000)


def _ahead_ms(answer: Mapping[str, Any], now_ms: int) -> int:
    """Return how far this clock is ahead; a Date header has whole seconds, of any fraction."""
    service_ms = service_time_ms(answer)
    return (
        0 if service_ms is None or service_ms <= now_ms < service_ms + 1000 else now_ms - service_ms
    )
