"""
Instants as configuration, commands and Spark's options have them: one grammar, one refusal.

Epoch milliseconds, ISO 8601 with a time zone, and, where there is a clock to go by, a time ago.
"""

from __future__ import annotations

import re
from datetime import datetime

EARLIEST_MS = 1_384_387_200_000
"""2013-11-14, when Kinesis began: no record is older."""
LATEST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999: what a calendar can show."""

_FORMS = "epoch milliseconds, and ISO 8601 with a time zone (2026-11-21T08:30:00Z)"
_AGO = re.compile(r"([0-9]{1,9})([smhd])")
_AGO_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DIGITS = re.compile(r"[0-9]{1,19}")
# Milliseconds of one: (numerator, denominator).
_UNITS = {"seconds": (1_000, 1), "microseconds": (1, 1_000), "nanoseconds": (1, 1_000_000)}
_MEANT_MOST_MS = 4_102_444_800_000  # The year 2100: nobody means a later instant by a wrong unit.


def instant_ms(text: str, *, now_ms: int | None = None) -> int:
    """
    Return the epoch milliseconds of an instant as a person writes it.

    Args:
        text: `1795000000000`, `2026-11-21T08:30:00Z`, or a time ago (`90s`, `15m`, `2h`, `1d`).
        now_ms: the present; None: there is none to go by, and a time ago is refused.

    Raises:
        ValueError: none of these, of an unlikely unit, or in the future.

    """
    text = text.strip()
    found = _read(text, now_ms)
    if found is None:
        ago = "" if now_ms is None else "a time ago (90s, 15m, 2h, 1d), "
        raise ValueError(f"{text[:60]!r} found; allowed are {ago}{_FORMS}")
    if fault := instant_fault(found):
        raise ValueError(fault)
    if now_ms is not None and found > now_ms:
        raise ValueError(f"{text!r} lies in the future")
    return found


def _read(text: str, now_ms: int | None) -> int | None:
    if now_ms is not None and (ago := _AGO.fullmatch(text)):
        return now_ms - int(ago[1]) * _AGO_MS[ago[2]]
    if _DIGITS.fullmatch(text):
        return int(text)
    try:
        instant = datetime.fromisoformat(text)
        return None if instant.tzinfo is None else round(instant.timestamp() * 1_000)
    except (ValueError, OverflowError):
        return None


def instant_fault(at_ms: int) -> str:
    """Return why nobody can mean these epoch milliseconds; nothing where somebody may."""
    if EARLIEST_MS <= at_ms <= LATEST_MS:
        return ""
    for unit, (times, per) in _UNITS.items():
        meant_ms = at_ms * times // per
        if EARLIEST_MS <= meant_ms <= _MEANT_MOST_MS:
            return f"{at_ms} found, which are {unit}; milliseconds are {meant_ms}"
    return f"{at_ms} ms found; Kinesis began in 2013 ({EARLIEST_MS} ms), and years have four digits"
