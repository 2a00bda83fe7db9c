"""
Requests to DynamoDB against botocore's model: what it forbids is refused before ministack sees it.

Types, lengths, ranges and sets of values, down to the attribute values, which ministack checks.
"""

import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final

from botocore.model import ListShape, MapShape, Shape, StructureShape
from botocore.session import get_session
from ministack import app as ministack_app
from ministack.core import responses

from shardfleet_local.aws.patches import Patch
from shardfleet_local.aws.settings import ServerSettings
from shardfleet_local.kinesis.errors import KinesisError
from shardfleet_local.kinesis.requests import broken

_TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    "blob": str,
    "boolean": bool,
    "double": (int, float),
    "float": (int, float),
    "integer": int,
    "list": list,
    "long": int,
    "map": dict,
    "string": str,
    "structure": dict,
    "timestamp": (int, float),
}
_CHECKED_BY_MINISTACK = "AttributeValue"


def wrong(value: Any, shape: Shape, *, member: str = "") -> Iterator[KinesisError]:
    """Yield a refusal for each part of a request that breaks its model, the outermost first."""
    if value is None or shape.name == _CHECKED_BY_MINISTACK:
        return
    is_number = shape.type_name in {"integer", "long", "double", "float"}
    if not isinstance(value, _TYPES[shape.type_name]) or (is_number and isinstance(value, bool)):
        text = f"{member or 'The request'} must be of type {shape.type_name}"
        yield KinesisError("SerializationException", text)  # fact K61
        return
    limits = shape.metadata
    size = value if is_number else len(value) if hasattr(value, "__len__") else 0
    if "enum" in limits and value not in limits["enum"]:
        allowed = f"Member must satisfy enum value set: [{', '.join(limits['enum'])}]"
        yield broken(value, member, constraint=allowed)
    for bound, text, is_out in (
        ("min", "greater", size < limits.get("min", size)),
        ("max", "less", size > limits.get("max", size)),
    ):
        if is_out:
            what = "value" if is_number else "length"
            allowed = f"Member must have {what} {text} than or equal to {limits[bound]}"
            yield broken(value, member, constraint=allowed)
    for inner, of, name in _parts(value, shape, member):
        yield from wrong(inner, of, member=name)


def _parts(value: Any, shape: Shape, member: str) -> Iterator[tuple[Any, Shape, str]]:
    """Yield what a value consists of: the part, its shape, and its name as AWS writes it."""
    before = f"{member}." if member else ""
    if isinstance(shape, StructureShape):
        for name, of in shape.members.items():
            yield value.get(name), of, f"{before}{name[:1].lower()}{name[1:]}"
    elif isinstance(shape, ListShape):
        for number, each in enumerate(value, 1):
            yield each, shape.member, f"{before}{number}.member"
    elif isinstance(shape, MapShape):
        for key, each in value.items():
            yield each, shape.value, f"{before}{key}.member"


def _install(_: ServerSettings) -> None:
    model = get_session().get_service_model("dynamodb")
    known = frozenset(model.operation_names)
    stock = ministack_app.SERVICE_HANDLERS["dynamodb"]

    async def handle(*request: Any) -> Any:
        _method, _path, headers, body, _query = request
        lowered = {name.lower(): value for name, value in headers.items()}
        operation = lowered.get("x-amz-target", "").rpartition(".")[2]
        if operation in known:
            try:
                asked = json.loads(body or b"{}")
            except ValueError:
                asked = None  # Refused by ministack.
            shape = model.operation_model(operation).input_shape
            if error := next(wrong(asked, shape) if shape else iter(()), None):
                return responses.error_response_json(
                    error.code, error.message, HTTPStatus.BAD_REQUEST
                )
        return await stock(*request)

    ministack_app.SERVICE_HANDLERS["dynamodb"] = handle


PATCHES = (
    Patch(
        gap="DynamoDB takes values that are in no enum, and fails inside at those of another type",
        touches=(
            "ministack.app:SERVICE_HANDLERS",
            "ministack.core.responses:error_response_json",
        ),
        apply=_install,
    ),
)
"""What this module corrects in ministack."""
