"""
Small pages: no answer of a paged call has more items than was settled, so that second pages happen.

What a caller asks for in one page is lowered at the door of each service. The members that say it
are those of botocore's paginators; AWS allows a page of fewer items than were asked for in all of
these calls (facts: K02, D17, G06).
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import cbor2
from botocore.session import get_session
from ministack import app as ministack_app

from shardfleet_local.aws.patches import Patch
from shardfleet_local.aws.settings import ServerSettings

# ministack's name of a service -> botocore's
SERVICES = {
    "monitoring": "cloudwatch",
    "dynamodb": "dynamodb",
    "events": "events",
    "kinesis": "kinesis",
    "lambda": "lambda",
    "logs": "logs",
    "s3": "s3",
    "sqs": "sqs",
    "states": "stepfunctions",
}
_IN_QUERY = {"s3": ("list-type", "max-keys"), "lambda": ("", "MaxItems")}
"""Services that are asked for pages in the URL: what marks such a URL, and the member."""

Handler = Callable[..., Awaitable[Any]]


def limited(handler: Handler, members: Mapping[str, str], most: int) -> Handler:
    """Return a handler like another whose requests (JSON or CBOR) ask for `most` items at most."""

    async def handle(*request: Any) -> Any:
        method, path, headers, body, query = request
        lowered = {name.lower(): value for name, value in headers.items()}
        named = lowered.get("x-amz-target", "").rpartition(".")[2]
        member = members.get(named or path.rpartition("/operation/")[2])
        if member is not None:
            is_cbor = "cbor" in lowered.get("content-type", "")
            asked = (cbor2.loads(body) if is_cbor else json.loads(body)) if body else {}
            if _is_lowered(asked.get(member), most):
                asked[member] = most
                body = cbor2.dumps(asked) if is_cbor else json.dumps(asked).encode()
        return await handler(method, path, headers, body, query)

    return handle


def limited_in_query(handler: Handler, mark: str, member: str, *, most: int) -> Handler:
    """Return a handler like another whose URLs ask for `most` items at most."""

    async def handle(*request: Any) -> Any:
        method, path, headers, body, query = request
        if method == "GET" and (not mark or mark in query):
            given = query.get(member)
            asked = given[0] if isinstance(given, list) else given
            if _is_lowered(int(asked) if asked and asked.isdecimal() else asked, most):
                query = {**query, member: [str(most)]}
        return await handler(method, path, headers, body, query)

    return handle


def _is_lowered(asked: Any, most: int) -> bool:
    """Return whether a page would be larger; what is no number is for the service to refuse."""
    return asked is None or (isinstance(asked, int) and asked > most)


def members_of(service: str) -> dict[str, str]:
    """Return operation -> the member that says how many items a page may have."""
    loader = get_session().get_component("data_loader")
    paginators = loader.load_service_model(service, "paginators-1")["pagination"]
    return {name: how["limit_key"] for name, how in paginators.items() if "limit_key" in how}


def _install(settings: ServerSettings) -> None:
    most = settings.behaviour.page_items
    if most is None:
        return
    handlers = ministack_app.SERVICE_HANDLERS
    for name in SERVICES.keys() & handlers.keys():
        if name in _IN_QUERY:
            mark, member = _IN_QUERY[name]
            handlers[name] = limited_in_query(handlers[name], mark, member, most=most)
        else:
            handlers[name] = limited(handlers[name], members_of(SERVICES[name]), most)


PATCHES = (
    Patch(
        gap="No listing of a small account has a second page",
        touches=("ministack.app:SERVICE_HANDLERS",),
        apply=_install,
    ),
)
"""What this module corrects in ministack."""
