"""Points in time as a person types and reads them."""

import re
from datetime import UTC, datetime

from shardfleet.errors import ConfigurationError

_AGO = re.compile(r"(\d+)(s|m|h|d)")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EPOCH_MS = re.compile(r"\d{12,14}")


def instant_ms(option: str, text: str, *, now_ms: int) -> int:
    """
    Read a point in time and return it in epoch milliseconds.

    Allowed are a time ago (`90s`, `15m`, `2h`, `1d`), epoch milliseconds, and ISO 8601 with a
    time zone (`2026-11-21T08:30:00Z`); without one it would depend on the machine.

    Raises:
        ConfigurationError: none of these, or in the future.

    """
    found = _read(text.strip(), now_ms)
    if found is None:
        raise ConfigurationError(
            f"{option}: {text!r} found; allowed are a time ago (90s, 15m, 2h, 1d), epoch "
            "milliseconds, and ISO 8601 with a time zone (2026-11-21T08:30:00Z)"
        )
    if found > now_ms:
        raise ConfigurationError(f"{option}: {text!r} lies in the future")
    return found


def _read(text: str, now_ms: int) -> int | None:
    if ago := _AGO.fullmatch(text):
        return now_ms - int(ago[1]) * _UNIT_MS[ago[2]]
    if _EPOCH_MS.fullmatch(text):
        return int(text)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if instant.tzinfo is None else int(instant.timestamp() * 1_000)


def date(at_ms: int) -> str:
    """Return a point in time, which is epoch milliseconds, in UTC and as one word."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def spoken_instant(at_ms: int, *, now_ms: int) -> str:
    """Return a point in time in UTC, as one word; the date only if it is not today's."""
    day, found = date(now_ms)[:10], date(at_ms)
    return found[11:] if found.startswith(day) else found
