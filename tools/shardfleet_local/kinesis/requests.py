"""
Reading fields of a request, with the lengths, ranges and patterns of the service model.

A field that breaks its declared constraint raises ValidationException in the form AWS gives it:
which value, at which member, against which constraint.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from shardfleet_local.kinesis.errors import KinesisError, validation

Request = Mapping[str, Any]

_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_STREAM_ID: Final = re.compile(r"[a-z0-9]{20}-[a-z0-9]{3}")
_HASH_KEY: Final = re.compile(r"0|[1-9]\d{0,38}")
MOST_RESULTS: Final = 10_000  # fact K94
"""Greatest page size a caller may ask for (service model)."""


def broken(value: object, member: str, *, constraint: str) -> KinesisError:
    """Return the ValidationException for one value that breaks one constraint."""
    shown = "null" if value is None else f"'{str(value)[:100]}'"
    member = member[0].lower() + member[1:]
    return validation(
        f"1 validation error detected: Value {shown} at '{member}' failed to satisfy constraint: "
        f"{constraint}"
    )


def optional_text(request: Request, field: str) -> str | None:
    """Return a text field, or None where it is absent or null."""
    value = request.get(field)
    if value is None or isinstance(value, str):
        return value
    raise KinesisError(
        "SerializationException", f"{field} must be a string, not {value!r}."
    )  # fact K61


def text(request: Request, field: str) -> str:
    """Return a text field that must be there and not be empty."""
    value = optional_text(request, field)
    if not value:
        raise broken(value, field, constraint="Member must not be null or empty")  # fact K60
    return value


def text_of(request: Request, field: str, *, most: int) -> str:
    """Return a text field of 1 to `most` characters, "" where it is absent."""
    value = optional_text(request, field)
    if value is not None and not 1 <= len(value) <= most:
        raise broken(  # fact K60
            value, field, constraint=f"Member must have length from 1 to {most}"
        )
    return value or ""


def start_name(request: Request, field: str) -> str:
    """Return the name or shard id after which a listing begins, "" where it is absent."""
    return "" if request.get(field) is None else name(request, field)


def check_stream_id(request: Request) -> None:
    """Refuse a StreamId of another form than the service model has; AWS reserves the rest."""
    value = optional_text(request, "StreamId")
    if value is not None and _STREAM_ID.fullmatch(value) is None:
        raise broken(  # fact K60
            value,
            "streamId",
            constraint=f"Member must satisfy regular expression pattern: {_STREAM_ID.pattern}",
        )


def switch(request: Request, field: str) -> bool:
    """Return a boolean field, False where it is absent."""
    value = request.get(field)
    if value is not None and not isinstance(value, bool):
        raise KinesisError(  # fact K61
            "SerializationException", f"{field} must be true or false, not {value!r}."
        )
    return bool(value)


def name(request: Request, field: str) -> str:
    """Return a stream name, consumer name or shard id (1 to 128 of letters, digits, `_.-`)."""
    value = text(request, field)
    if _NAME.fullmatch(value) is None:
        raise broken(  # fact K60, K94
            value,
            field,
            constraint="Member must satisfy regular expression pattern: [a-zA-Z0-9_.-]+",
        )
    return value


def whole_number(
    request: Request, field: str, *, least: int, most: int, default: int | None = None
) -> int:
    """Return a whole number within the bounds; the default, if there is one, where it is absent."""
    value = request.get(field)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise broken(  # fact K60
            value, field, constraint=f"Member must be a whole number from {least} to {most}"
        )
    return value


def hash_key(request: Request, field: str) -> int | None:
    """Return a hash key (a decimal number without leading zeros), or None where it is absent."""
    value = optional_text(request, field)
    if value is None:
        return None
    if _HASH_KEY.fullmatch(value) is None:
        raise broken(  # fact K60, K94
            value,
            field,
            constraint="Member must satisfy regular expression pattern: 0|([1-9]\\d{0,38})",
        )
    return int(value)


def timestamp_ms(request: Request, field: str) -> int | None:
    """Return a timestamp (seconds since the epoch, fractions allowed) as ms; None if absent."""
    value = request.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise KinesisError(  # fact K61
            "SerializationException", f"{field} must be seconds since the epoch, not {value!r}."
        )
    # Down to the millisecond begun, so that a client's own "now" is never in our future; the small
    # addition is for 1.48 seconds, which a float keeps as 1.4799999.
    return int(value * 1000 + 0.001)


def structure(request: Request, field: str) -> Request | None:
    """Return a nested structure, or None where it is absent."""
    value = request.get(field)
    if value is None or isinstance(value, Mapping):
        return value
    raise KinesisError(
        "SerializationException", f"{field} must be a structure, not {value!r}."
    )  # fact K61


def choice(request: Request, field: str, *, allowed: tuple[str, ...]) -> str:
    """Return a text field that must be one of the allowed values."""
    value = text(request, field)
    if value not in allowed:
        raise broken(  # fact K60
            value, field, constraint=f"Member must satisfy enum value set: [{', '.join(allowed)}]"
        )
    return value


def text_list(request: Request, field: str, *, most: int) -> list[str]:
    """Return a list of 1 to `most` texts."""
    value = request.get(field)
    if (
        not isinstance(value, list)
        or not 1 <= len(value) <= most
        or not all(isinstance(each, str) for each in value)
    ):
        raise broken(
            value, field, constraint=f"Member must be a list of 1 to {most} strings"
        )  # fact K60
    return value
