"""Our Kinesis engine as the embedded AWS's Kinesis service, instead of ministack's own."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from hypercorn.protocol.events import StreamClosed
from hypercorn.protocol.h2 import H2Protocol
from ministack import app as ministack_app
from ministack.core import iam_actions, responses

from shardfleet_local.aws import cloudwatch
from shardfleet_local.aws.patches import Patch
from shardfleet_local.aws.settings import ServerSettings
from shardfleet_local.kinesis import wire
from shardfleet_local.kinesis.account import AccountSettings
from shardfleet_local.kinesis.engine import KinesisEngine
from shardfleet_local.kinesis.errors import KinesisError
from shardfleet_local.kinesis.metrics import sample_description
from shardfleet_local.kinesis.service import KinesisService, ministack_handler
from shardfleet_local.kinesis.tokens import named_arn

METRICS_EVERY_S = 1.0
"""How often the engine's metrics are copied into CloudWatch."""

_services: list[KinesisService] = []


def engine() -> KinesisEngine:
    """Return the engine of the account and region of the request being served."""
    return _services[-1].engine(responses.get_account_id(), responses.get_region())


def _install(settings: ServerSettings) -> None:
    def make(account_id: str, region: str) -> KinesisEngine:
        behaviour = settings.behaviour
        own = AccountSettings(
            account_id=account_id,
            region=region,
            quotas=behaviour.kinesis_quotas,
            unkind=behaviour.unkind,
        )
        return KinesisEngine(own, clock=time.time)

    service = KinesisService(make)
    _services.append(service)
    ministack_app.SERVICE_HANDLERS["kinesis"] = ministack_handler(
        service,
        account=lambda: (responses.get_account_id(), responses.get_region()),
        streaming=responses.StreamingResponse,
    )

    def drain() -> Iterator[tuple[str, str, Sequence[Mapping[str, Any]]]]:
        for (account_id, region), each in list(service.engines.items()):
            yield account_id, region, [sample_description(it) for it in each.drain_metrics()]

    cloudwatch.publish_kinesis_metrics(drain, METRICS_EVERY_S)


def _resolve_streams(_: ServerSettings) -> None:
    stock: Callable[..., str] = iam_actions.extract_resource_arn

    def extract(service: str, *request: Any) -> str:
        found = stock(service, *request)
        if service != "kinesis" or found != "*":
            return found
        _method, _path, headers, body, *_ = request
        try:
            return named_arn(wire.decode(body, wire.content_type_of(headers))) or found
        except KinesisError:
            return found  # What is no request is refused by the service itself.

    iam_actions.extract_resource_arn = extract


def _tell_of_breaks(_: ServerSettings) -> None:
    stock = H2Protocol.stream_send

    async def stream_send(self: H2Protocol, event: Any) -> None:
        sending = self.stream_buffers.get(event.stream_id)
        if isinstance(event, StreamClosed) and sending is not None and not sending.complete:
            with suppress(ProtocolError):
                self.connection.reset_stream(event.stream_id, ErrorCodes.INTERNAL_ERROR)
                await self._flush()
        await stock(self, event)

    H2Protocol.stream_send = stream_send  # type: ignore[method-assign]


PATCHES = (
    Patch(
        gap="Resharding loses records, no shard limits, no metrics, wrong ShardFilter",
        touches=(
            "ministack.app:SERVICE_HANDLERS",
            "ministack.core.responses:StreamingResponse",
            "ministack.core.responses:get_account_id",
            "ministack.core.responses:get_region",
        ),
        apply=_install,
    ),
    Patch(
        gap="With IAM enforced, the next page of ListShards is refused: its token is of no stream",
        touches=("ministack.core.iam_actions:extract_resource_arn",),
        apply=_resolve_streams,
    ),
    Patch(
        gap="An answer over HTTP/2 that breaks off ends without a word (RFC 9113, RST_STREAM)",
        touches=(
            "hypercorn.protocol.events:StreamClosed",
            "hypercorn.protocol.h2:H2Protocol.stream_send",
            "hypercorn.protocol.h2:H2Protocol._flush",
            "hypercorn.protocol.h2:StreamBuffer.complete",
        ),
        apply=_tell_of_breaks,
    ),
)
"""What this module corrects in ministack."""
