"""
The embedded AWS's own HTTP operations, under `/_shardfleet/`, and the one ASGI application.

Nothing is routed before the door has let it in, ministack's own paths included. The account's root
may do everything; a key that STS or IAM gave out opens the services, whose policies then decide,
and nothing that is not AWS's. CloudFormation's own answer URLs are their own key, as on AWS.

* `GET health`: the server is up.
* `GET workers?function=NAME`: the live Lambda processes.
* `GET requests`: how many requests came to each operation, and the units that tables used.
* `PUT lambda-environment`: variables for Lambda processes that start from now on.
* `PUT job-runs`: what the job runs of EMR Serverless do that begin from now on.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

from ministack import app as ministack_app
from ministack.services.cloudformation import custom_resource

from shardfleet_local.access import AccessKey, Door, Headers
from shardfleet_local.aws import alarms, emr_service, lambda_service
from shardfleet_local.aws.credentials import is_issued
from shardfleet_local.aws.request_meter import RequestMeter
from shardfleet_local.aws.settings import ServerSettings
from shardfleet_local.kinesis.admin import ADMIN_TARGET
from shardfleet_local.refusals import REFUSED, refusal_of

PREFIX = "/_shardfleet/"

ANSWERS = "/_ministack/cfn-response/"
"""Where the function of a custom resource puts its answer; what follows was drawn for it."""

LOOKED_AT = frozenset((b"host", b"origin", b"authorization", b"x-amz-target"))
"""What decides about a request; ASGI has the names in lower case."""

NOT_OF_AWS = "/_"
"""How paths begin that are ministack's or ours."""

METER = RequestMeter()
"""Of the one server that a process is."""

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Operation = Callable[[Mapping[str, str], Any], Any]


def _health(_: Mapping[str, str], __: Any) -> Any:
    return {"status": "ok"}


def _workers(query: Mapping[str, str], _: Any) -> Any:
    return lambda_service.worker_processes(query.get("function"))


def _requests(_: Mapping[str, str], __: Any) -> Any:
    return METER.counts()


def _lambda_environment(_: Mapping[str, str], body: Any) -> Any:
    lambda_service.replace_environment(body)
    return {}


def _alarm_period_scale(_: Mapping[str, str], body: Any) -> Any:
    alarms.scale_periods(body)
    return {}


def _job_runs(_: Mapping[str, str], body: Any) -> Any:
    emr_service.set_work(**body)
    return {}


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", "health"): _health,
    ("GET", "workers"): _workers,
    ("GET", "requests"): _requests,
    ("PUT", "lambda-environment"): _lambda_environment,
    ("PUT", "alarm-period-scale"): _alarm_period_scale,
    ("PUT", "job-runs"): _job_runs,
}
"""Method and name → operation; it takes the query and the JSON body and returns JSON."""


Application = Callable[[Mapping[str, Any], Receive, Send], Awaitable[None]]


def application(settings: ServerSettings) -> Application:
    """Return what serves `/_shardfleet/…` here and everything else by ministack (ASGI 3)."""
    key = AccessKey(settings.access_key_id, settings.secret_access_key)
    door = Door(settings.port, key, tls_port=settings.tls_port)

    def issued(key_id: str) -> bool:
        return is_issued(settings.account_id, key_id)

    def refusal(scope: Mapping[str, Any], headers: Headers) -> str:
        token = scope["path"].removeprefix(ANSWERS)
        if token in custom_resource._pending and scope["method"] == "PUT":
            return door.astray(headers)
        return door.refusal(headers, issued=None if _is_ours(scope["path"], headers) else issued)

    async def serve(scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await ministack_app.app(scope, receive, send)
        elif scope["type"] != "http":  # A web page may open a WebSocket to anywhere.
            await send({"type": f"{scope['type']}.close"})
        elif reason := refusal(scope, looked_at := _looked_at(scope)):
            await _refuse(send, dict(_text(*header) for header in scope["headers"]), reason)
        elif scope["path"].startswith(PREFIX):
            await _send_json(send, *await _answer(scope, receive))
        else:
            counted = METER.around(looked_at, _without_permissions(send))
            await ministack_app.app(scope, receive, counted)

    return serve


def _is_ours(path: str, headers: Headers) -> bool:
    return path.startswith(NOT_OF_AWS) or any(
        name == "x-amz-target" and ADMIN_TARGET in value for name, value in headers
    )


def _looked_at(scope: Mapping[str, Any]) -> Headers:
    return [_text(*header) for header in scope["headers"] if header[0] in LOOKED_AT]


def _text(name: bytes, value: bytes) -> tuple[str, str]:
    return name.decode("latin-1"), value.decode("latin-1")


def _without_permissions(send: Send) -> Send:
    """Send no header that would let a page of another origin read an answer."""

    async def without(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            kept = [h for h in message["headers"] if h[0][:14].lower() != b"access-control"]
            message = {**message, "headers": kept}
        await send(message)

    return without


async def _refuse(send: Send, headers: Mapping[str, str], reason: str) -> None:
    told, body = refusal_of(headers, reason)
    found = [(name.encode(), value.encode()) for name, value in told.items()]
    await send({"type": "http.response.start", "status": REFUSED, "headers": found})
    await send({"type": "http.response.body", "body": body})


async def _send_json(send: Send, status: int, answer: Any) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


async def _answer(scope: Mapping[str, Any], receive: Receive) -> tuple[int, Any]:
    name = scope["path"].removeprefix(PREFIX)
    operation = OPERATIONS.get((scope["method"], name))
    if operation is None:
        known = ", ".join(f"{method} {PREFIX}{each}" for method, each in OPERATIONS)
        return 404, {"message": f"{scope['method']} {scope['path']}: there is only {known}"}
    query = {key: values[-1] for key, values in parse_qs(scope["query_string"].decode()).items()}
    body = await _body(receive)
    try:
        return 200, operation(query, json.loads(body) if body else None)
    except (ValueError, KeyError, TypeError) as error:
        return 400, {"message": f"{name}: {error}"}


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body
