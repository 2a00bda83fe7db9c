"""`shardfleet redrive`: what was given up goes through the deployed handler again."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import to_builtins

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.given_up import folder_of
from shardfleet_ops.cli.approval import DryRunOption, YesOption, approved, exit_code
from shardfleet_ops.cli.fleet_access import JsonOption, with_opened
from shardfleet_ops.cli.fleets import (
    DEFAULT_STACK,
    DeployedFleet,
    FleetName,
    FleetOption,
    StackOption,
    find_functions,
)
from shardfleet_ops.cli.instants import date
from shardfleet_ops.cli.telling import tell
from shardfleet_ops.operate.given_up import (
    FailedBucket,
    GivenUp,
    RefusedDocument,
    by_shard,
    sorted_out,
)

if TYPE_CHECKING:
    from shardfleet_ops.operate.redrive import Handle, KeptRecords, Redriven

# What executions invoke, too (`shardfleet_cdk.worker`).
ALIAS = "live"
# A worker loads its handler first, and a class is told of its shard's beginning and end.
_CALLS = 3
_COLD_START_S = 60
_CLOSE_MS = 10_000


@dataclass(frozen=True, slots=True)
class _Opened:
    """What the command works with."""

    kept: "KeptRecords"
    handle: "Handle"
    stream_arn: str
    own: FailedBucket
    within_s: int


def redrive(
    *,
    place: Annotated[
        str,
        typer.Option("--from", metavar="PLACE", help="s3://BUCKET/PREFIX, or the URL of a queue."),
    ],
    stack: StackOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Hand records that were given up to the handler again; delete each that it has handled."""

    async def work(opened: _Opened) -> int:
        from shardfleet_ops.operate.redrive import redrive as redriven

        documents, refused = sorted_out(await opened.kept.look(), opened.stream_arn)
        results: Sequence[Redriven] = ()
        go_on = False
        try:
            if not as_json:
                tell(None, _preview(documents, refused, place, own=opened.own), as_json=False)
            go_on = bool(documents) and approved(yes=yes, dry_run=dry_run, as_json=as_json)
        finally:
            await opened.kept.leave([*refused, *(() if go_on else documents)])
        if go_on:
            results = await redriven(
                documents, kept=opened.kept, handle=opened.handle, within_s=opened.within_s
            )
        shown = _document(documents, refused, results, opened.own, written=go_on)
        tell(shown, map(_words, results), as_json=as_json)
        if refused or any(result.left for result in results):
            return 1
        return exit_code(done=go_on or not documents, dry_run=dry_run)

    raise typer.Exit(with_opened(_opened(FleetName(stack, fleet_name), place), work))


def _opened(name: FleetName, place: str) -> AbstractAsyncContextManager[_Opened]:
    return _open(find_functions(name), place)


@asynccontextmanager
async def _open(fleet: DeployedFleet, place: str) -> Any:
    from shardfleet.adapters.clients.aws_clients import AwsClients, ConnectionLimits
    from shardfleet.adapters.invoked_function import InvokedFunction
    from shardfleet.adapters.system import SystemClock, SystemEntropy
    from shardfleet.adapters.thread_pool import ThreadPool
    from shardfleet.engine.retry import Patience
    from shardfleet.runtime.redrive import RedrivingWorker
    from shardfleet_ops.aws.kept_records import KeptInBucket, KeptInQueue

    config = fleet.config
    within_s = _CALLS * config.handler_timeout_ms // 1000 + _COLD_START_S
    limits = ConnectionLimits(writes=1, reads=1, streams=1, calls=1, call_ms=within_s * 1000)
    clients, pool = AwsClients(limits), ThreadPool("redrive", threads=1)
    worker = InvokedFunction(
        f"{config.worker_function}:{ALIAS}", client=clients.functions, pool=pool
    )
    patience = Patience.of(config, clock=SystemClock(), entropy=SystemEntropy())
    own = failed_bucket(config)
    kept: KeptInBucket | KeptInQueue
    if _is_queue(place):
        kept = KeptInQueue(place, client=clients.sqs, objects=clients.s3, own=own, pool=pool)
    else:
        kept = KeptInBucket(place, client=clients.s3, own=own, pool=pool)
    handle = RedrivingWorker(worker, patience=patience).handle
    try:
        yield _Opened(kept, handle, config.stream_arn, own, within_s)
    finally:
        await asyncio.shield(pool.close(within_ms=_CLOSE_MS))


def failed_bucket(config: FleetConfig) -> FailedBucket:
    """Return where a fleet keeps what it gives up, by its manager's configuration."""
    _arn, _aws, _states, region, account, *_ = config.state_machine_arn.split(":")
    folder = folder_of(config.fleet, account=account, region=region)
    return FailedBucket(bucket=config.failed_bucket, folder=folder)


def _is_queue(place: str) -> bool:
    return place.startswith(("http://", "https://"))


def _preview(
    documents: Sequence[GivenUp],
    refused: Sequence[RefusedDocument],
    place: str,
    *,
    own: FailedBucket,
) -> Iterator[str]:
    yield from (f"Left: {left.reason}" for left in refused)
    if not documents:
        yield f"Nothing that this fleet has given up is in {place}."
        return
    what = "message" if _is_queue(place) else "object"
    for shard_id, of_shard in by_shard(documents).items():
        first = min((each.first_ms for each in of_shard if each.first_ms), default=0)
        last = max(each.last_ms for each in of_shard)
        arrived = f", arrived {date(first)} to {date(last)}" if first and last else ""
        yield (
            f"{shard_id}: {_many(sum(each.count for each in of_shard), 'record')} in "
            f"{_many(len(of_shard), what)}{arrived}"
        )
        for each in of_shard:
            yield f"  {_place(each, own)}"
    yield (
        "The deployed handler gets them again, each shard's in order, beside what comes new; what "
        "it has handled is deleted there."
    )


def _place(document: GivenUp, own: FailedBucket) -> str:
    if refusal := own.refusal_of(document):
        return f"left, with what is behind it: {refusal}"
    if document.location:
        return f"{document.where}, and {document.location}"
    return document.where


def _words(result: "Redriven") -> str:
    done = f"{result.shard_id}: {_many(result.records, 'record')} handled and deleted"
    if not result.left:
        return done
    behind = f", {result.left - 1} behind it are left, too" if result.left > 1 else ""
    return f"{done}; {result.where} is left{behind}: {result.error}"


def _document(
    documents: Sequence[GivenUp],
    refused: Sequence[RefusedDocument],
    results: "Sequence[Redriven]",
    own: FailedBucket,
    *,
    written: bool,
) -> dict[str, Any]:
    names = ("where", "location", "shard_id", "place", "count", "first_ms", "last_ms")
    return {
        "written": written,
        "found": [
            {**{name: getattr(each, name) for name in names}, "refusal": own.refusal_of(each)}
            for each in documents
        ],
        "refused": [to_builtins(each) for each in refused],
        "shards": [to_builtins(result) for result in results],
    }


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
