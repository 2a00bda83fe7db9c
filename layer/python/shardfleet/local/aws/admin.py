"""
The embedded AWS's own HTTP operations, under `/_shardfleet/`, and the one ASGI application.

* `GET health`: the server is up.
* `GET workers?function=NAME`: the live Lambda processes.
* `PUT lambda-environment`: variables for Lambda processes that start from now on.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

from ministack import app as ministack_app

from shardfleet.local.aws import alarms, lambda_service

PREFIX = "/_shardfleet/"

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Operation = Callable[[Mapping[str, str], Any], Any]


def _health(_: Mapping[str, str], __: Any) -> Any:
    return {"status": "ok"}


def _workers(query: Mapping[str, str], _: Any) -> Any:
    return lambda_service.worker_processes(query.get("function"))


def _lambda_environment(_: Mapping[str, str], body: Any) -> Any:
    lambda_service.replace_environment(body)
    return {}


def _alarm_period_scale(_: Mapping[str, str], body: Any) -> Any:
    alarms.scale_periods(body)
    return {}


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", "health"): _health,
    ("GET", "workers"): _workers,
    ("PUT", "lambda-environment"): _lambda_environment,
    ("PUT", "alarm-period-scale"): _alarm_period_scale,
}
"""Method and name → operation; it takes the query and the JSON body and returns JSON."""


async def application(scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
    """Serve `/_shardfleet/…` here and everything else by ministack (ASGI 3)."""
    if scope["type"] == "http" and scope["path"].startswith(PREFIX):
        status, answer = await _answer(scope, receive)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})
        return
    await ministack_app.app(scope, receive, send)


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
