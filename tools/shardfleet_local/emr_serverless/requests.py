"""
Requests of EMR Serverless as botocore's model has them: which operation, with which values.

The SDK checks a request before it is sent for types, for what is missing and for least lengths; the
service checks patterns, greatest lengths and enumerations too.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from botocore.model import ListShape, MapShape, OperationModel, ServiceModel, Shape, StructureShape
from botocore.session import get_session
from botocore.utils import parse_timestamp

MODEL: Final[ServiceModel] = get_session().get_service_model("emr-serverless")
_IN_BRACES: Final = re.compile(r"\{(\w+)\}")


class EmrServerlessError(Exception):
    """A refusal: the exception's name in the API reference, the message and the HTTP status."""

    def __init__(self, code: str, message: str, *, status: int) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def invalid(message: str) -> EmrServerlessError:
    """Return ValidationException: a value out of its constraint, or a state that forbids it."""
    return EmrServerlessError("ValidationException", message, status=400)  # fact R12


def not_found(message: str) -> EmrServerlessError:
    """Return ResourceNotFoundException."""
    return EmrServerlessError("ResourceNotFoundException", message, status=404)  # fact R12


def conflict(message: str) -> EmrServerlessError:
    """Return ConflictException: a client token that another request has used."""
    return EmrServerlessError("ConflictException", message, status=409)  # fact R11, R12


def read(
    method: str, path: str, *, query: Mapping[str, Sequence[str]], body: bytes
) -> tuple[str, dict[str, Any]]:
    """
    Return the operation of an HTTP request and its values by their names in the model.

    Raises:
        EmrServerlessError: there is no such operation, or the body is no JSON object.

    """
    for name in MODEL.operation_names:
        operation = MODEL.operation_model(name)
        if operation.http["method"] == method and (found := _in_path(operation, path)) is not None:
            try:
                told = json.loads(body) if body else {}
            except ValueError:
                told = None
            if not isinstance(told, dict):
                raise invalid("The body is no JSON object")  # fact R12
            return name, {**told, **_in_query(operation, query), **found}
    raise not_found(f"There is no operation {method} {path}")  # ours


def _in_path(operation: OperationModel, path: str) -> dict[str, str] | None:
    pattern = _IN_BRACES.sub(r"(?P<\1>[^/]+)", operation.http["requestUri"].partition("?")[0])
    match = re.fullmatch(pattern, path)
    return None if match is None else {k: unquote(v) for k, v in match.groupdict().items()}


def _in_query(operation: OperationModel, query: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, shape in _members(operation.input_shape).items():
        place = shape.serialization
        values = query.get(place.get("name", name))
        if place.get("location") != "querystring" or not values:
            continue
        if shape.type_name == "list":
            found[name] = list(values)
        elif shape.type_name == "timestamp":
            found[name] = parse_timestamp(values[-1]).timestamp()
        elif shape.type_name in ("integer", "long"):
            found[name] = int(values[-1])
        else:
            found[name] = values[-1]
    return found


def _members(shape: Shape | None) -> Mapping[str, Shape]:
    return shape.members if isinstance(shape, StructureShape) else {}


def check(operation: str, request: Mapping[str, Any]) -> None:
    """
    Hold a request against the model.

    Raises:
        EmrServerlessError: the first value that breaks its constraint, in AWS's words.

    """
    shape = MODEL.operation_model(operation).input_shape
    for complaint in _wrong(request, shape, "") if shape else ():
        raise invalid(f"1 validation error detected: {complaint}")  # fact R12


def _wrong(value: Any, shape: Shape, member: str) -> Iterator[str]:
    limits = shape.metadata
    shown = f"Value '{str(value)[:100]}' at '{member}' failed to satisfy constraint: Member must "
    number = shape.type_name in ("integer", "long")
    if number != (isinstance(value, int) and not isinstance(value, bool)):
        yield shown + f"be of type {shape.type_name}"
        return
    size = value if number else len(value) if hasattr(value, "__len__") else 0
    what = "value" if number else "length"
    if size < limits.get("min", size):
        yield shown + f"have {what} greater than or equal to {limits['min']}"
    if size > limits.get("max", size):
        yield shown + f"have {what} less than or equal to {limits['max']}"
    if "enum" in limits and value not in limits["enum"]:
        yield shown + f"satisfy enum value set: [{', '.join(limits['enum'])}]"
    # The few patterns that Python's `re` reads otherwise are those of keys and images.
    pattern = limits.get("pattern", "")
    if pattern and "\\u" not in pattern and re.fullmatch(pattern, str(value), re.DOTALL) is None:
        yield shown + f"satisfy regular expression pattern: {pattern}"
    yield from _wrong_inside(value, shape, member)


def _wrong_inside(value: Any, shape: Shape, member: str) -> Iterator[str]:
    before = f"{member}." if member else ""
    if isinstance(shape, StructureShape):
        for name in shape.required_members:
            if value.get(name) is None:
                yield (
                    f"Value null at '{before}{name}' failed to satisfy constraint: Member must "
                    "not be null"
                )
        for name, of in shape.members.items():
            if value.get(name) is not None:
                yield from _wrong(value[name], of, f"{before}{name}")
    elif isinstance(shape, ListShape):
        for index, each in enumerate(value, 1):
            yield from _wrong(each, shape.member, f"{before}{index}.member")
    elif isinstance(shape, MapShape):
        for key, each in value.items():
            yield from _wrong(each, shape.value, f"{before}{key}.member")
