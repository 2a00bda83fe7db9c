"""Points in time as a person types and reads them."""

from datetime import UTC, datetime

from shardfleet.domain import instants
from shardfleet.errors import ConfigurationError


def instant_ms(option: str, text: str, *, now_ms: int) -> int:
    """
    Return a point in time in the past as epoch milliseconds.

    Raises:
        ConfigurationError: names the option; see :func:`shardfleet.domain.instants.instant_ms`.

    """
    try:
        return instants.instant_ms(text, now_ms=now_ms)
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}") from error


def date(at_ms: int) -> str:
    """Return a point in time, which is epoch milliseconds, in UTC and as one word."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def spoken_instant(at_ms: int, *, now_ms: int) -> str:
    """Return a point in time in UTC, as one word; the date only if it is not today's."""
    day, found = date(now_ms)[:10], date(at_ms)
    return found[11:] if found.startswith(day) else found
