"""
From HTTP headers and a body to an answer, whatever front end carries them.

`KinesisService.handle` is used by our own server (server.py) and by ministack, for which
`ministack_handler` has the right shape:

    service = KinesisService(lambda account_id, region: KinesisEngine(
        AccountSettings(account_id=account_id, region=region), clock=time.time))
    ministack.app.SERVICE_HANDLERS["kinesis"] = ministack_handler(
        service,
        account=lambda: (get_account_id(), get_region()),
        streaming=StreamingResponse,
    )

with `get_account_id` and `get_region` from ministack.core.responses, and its `StreamingResponse`.
There is one engine per account and region; a StreamARN or ConsumerARN of another account leads to
that account's engine (resource policies are not evaluated).
"""

import asyncio
import itertools
import re
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from shardfleet_local.kinesis import wire
from shardfleet_local.kinesis.admin import ADMIN_OPERATIONS, ADMIN_TARGET
from shardfleet_local.kinesis.engine import KinesisEngine
from shardfleet_local.kinesis.errors import KinesisError
from shardfleet_local.kinesis.subscriptions import SUBSCRIBE, Subscription, SubscriptionReset
from shardfleet_local.kinesis.tokens import named_arn

DEFAULT_ACCOUNT: Final = "000000000000"
DEFAULT_REGION: Final = "us-east-1"
_CREDENTIAL: Final = re.compile(r"Credential=[^/,\s]+/\d{8}/([a-z0-9-]+)/")
_ARN: Final = re.compile(r"arn:aws[a-z-]*:kinesis:([a-z0-9-]+):(\d{12}):")


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP answer; a body that is an iterator is sent frame by frame as it comes."""

    status: int
    headers: dict[str, str]
    body: bytes | AsyncIterator[bytes]


class KinesisService:
    """Engines by account and region, and the protocol in front of them."""

    def __init__(self, make_engine: Callable[[str, str], KinesisEngine]) -> None:
        self._make_engine = make_engine
        self._engines: dict[tuple[str, str], KinesisEngine] = {}
        self._request_ids = itertools.count(1)

    @property
    def engines(self) -> Mapping[tuple[str, str], KinesisEngine]:
        """The engines that have been used, by (account id, region)."""
        return self._engines

    def engine(self, account_id: str, region: str) -> KinesisEngine:
        """Return the engine of the account and region, made at the first use."""
        key = (account_id, region)
        if key not in self._engines:
            self._engines[key] = self._make_engine(account_id, region)
        return self._engines[key]

    async def handle(
        self,
        headers: Mapping[str, str],
        body: bytes | bytearray | memoryview,
        *,
        account: tuple[str, str] | None = None,
    ) -> Response:
        """
        Answer one request.

        Args:
            headers: with lower-case names.
            body: the whole body.
            account: account id and region of the caller; if None the default account, and the
                region that the signature is for.

        """
        content_type = wire.content_type_of(headers)
        try:
            return await self._answer(headers, body, caller=account or _caller(headers))
        except KinesisError as error:
            return self._refusal(error, content_type)
        except Exception:  # noqa: BLE001 - a bug of ours is a 500 to the client, and a trace to us
            traceback.print_exc(file=sys.stderr)
            text = "The engine failed; see its error output."
            bug = KinesisError("InternalFailure", text, status=500)  # fact K92
            return self._refusal(bug, content_type)

    async def _answer(
        self,
        headers: Mapping[str, str],
        body: bytes | bytearray | memoryview,
        *,
        caller: tuple[str, str],
    ) -> Response:
        content_type = wire.content_type_of(headers)
        target, _, operation = headers.get("x-amz-target", "").rpartition(".")
        request = wire.decode(body, content_type)
        engine = self.engine(*_owner(request, caller))
        if target == ADMIN_TARGET:
            return self._success(_administer(engine, operation, request=request), content_type)
        delay_ms = engine.delay_ms(operation, request)
        if delay_ms:
            await asyncio.sleep(delay_ms / 1000)
        if operation == SUBSCRIBE:
            frames = _frames(engine.subscribe(request), content_type)
            return Response(200, self._headers(wire.EVENT_STREAM), frames)
        return self._success(engine.call(operation, request), content_type)

    def _success(self, answer: dict[str, Any], content_type: str) -> Response:
        # AWS answers operations without output with an empty body.
        body = wire.encode(answer, content_type) if answer else b""
        return Response(200, self._headers(content_type), body)

    def _refusal(self, error: KinesisError, content_type: str) -> Response:
        headers = self._headers(content_type) | {"x-amzn-ErrorType": error.code}
        return Response(error.status, headers, wire.error_body(error, content_type))

    def _headers(self, content_type: str) -> dict[str, str]:
        request_id = f"00000000-0000-4000-8000-{next(self._request_ids):012x}"
        return {"Content-Type": content_type, "x-amzn-RequestId": request_id}


def _caller(headers: Mapping[str, str]) -> tuple[str, str]:
    match = _CREDENTIAL.search(headers.get("authorization", ""))
    return DEFAULT_ACCOUNT, DEFAULT_REGION if match is None else match[1]


def _owner(request: Mapping[str, Any], caller: tuple[str, str]) -> tuple[str, str]:
    match = _ARN.match(named_arn(request))
    return caller if match is None else (match[2], match[1])


def _administer(
    engine: KinesisEngine, operation: str, *, request: Mapping[str, Any]
) -> dict[str, Any]:
    run = ADMIN_OPERATIONS.get(operation)
    if run is None:
        raise KinesisError(  # ours
            "UnknownOperationException",
            f"{ADMIN_TARGET} has {', '.join(sorted(ADMIN_OPERATIONS))}, not {operation!r}.",
        )
    return run(engine, request)


async def _frames(subscription: Subscription, content_type: str) -> AsyncIterator[bytes]:
    yield wire.event_frame("initial-response", {}, content_type=content_type)
    try:
        async for event in subscription.events():
            yield wire.event_frame("SubscribeToShardEvent", event, content_type=content_type)
    except KinesisError as error:
        yield wire.exception_frame(error, content_type)
    except SubscriptionReset:
        raise
    except Exception:  # noqa: BLE001 - as in `handle`: told to both sides
        traceback.print_exc(file=sys.stderr)
        text = "The engine failed; see its error output."
        bug = KinesisError("InternalFailureException", text, status=500)  # fact K92
        yield wire.exception_frame(bug, content_type)


Handler = Callable[..., Awaitable[tuple[int, dict[str, str], Any]]]


def ministack_handler(
    service: KinesisService,
    *,
    account: Callable[[], tuple[str, str]],
    streaming: Callable[[Callable[[Any, Any], Awaitable[None]]], Any],
) -> Handler:
    """
    Return `async handler(method, path, headers, body, query) -> (status, headers, body)`.

    Args:
        service: where the engines are.
        account: returns account id and region of the request being served.
        streaming: ministack's StreamingResponse, given `async run(send, receive)` in ASGI terms.

    """

    async def handler(*request: Any) -> tuple[int, dict[str, str], Any]:
        _method, _path, headers, body, _query = request
        lowered = {name.lower(): value for name, value in headers.items()}
        response = await service.handle(lowered, body, account=account())
        if isinstance(response.body, bytes):
            return response.status, response.headers, response.body
        frames = response.body

        async def run(send: Any, receive: Any) -> None:
            await _send_frames(frames, send, receive=receive)

        return response.status, response.headers, streaming(run)

    return handler


async def _send_frames(frames: AsyncIterator[bytes], send: Any, *, receive: Any) -> None:
    async def pump() -> None:
        async with aclosing(frames) as each_frame:  # type: ignore[type-var]
            async for frame in each_frame:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    pumping, watching = asyncio.ensure_future(pump()), asyncio.ensure_future(watch())
    try:
        await asyncio.wait((pumping, watching), return_when=asyncio.FIRST_COMPLETED)
    finally:
        # A client that hangs up ends the subscription, not the task of the front end.
        watching.cancel()
        pumping.cancel()
        _, outcome = await asyncio.gather(watching, pumping, return_exceptions=True)
    if isinstance(outcome, SubscriptionReset):
        # Of what raises, ministack makes an answer that has ended in good order.
        raise asyncio.CancelledError from outcome
