"""Durations, counts and sequence numbers as a person says them, in a terminal and on a page."""

import re

_UNIT_MS = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1_000}
# Kinesis's sequence numbers have 56 digits, and differ at their ends.
_NUMBER = re.compile(r"(?<!\d)\d{38}(?=\d{18}(?!\d))")


def spoken_duration(duration_ms: float) -> str:
    """Return a duration as a person says it: `340 ms`, `12 s`, `4.5 min`, `3 h`, `2 d`."""
    for name, unit_ms in _UNIT_MS.items():
        if duration_ms >= unit_ms:
            return f"{round(duration_ms / unit_ms, 1):g} {name}"
    return f"{max(0, round(duration_ms))} ms"


def counted(count: int, noun: str) -> str:
    """Return how many there are: `1 record`, `2,000 records`, `0 entries`, `3 batches`."""
    if count == 1:
        return f"1 {noun}"
    ending = "es" if noun.endswith("ch") else "s"
    many = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}{ending}"
    return f"{count:,} {many}"


def brief_numbers(text: str) -> str:
    """Return a text with the last 18 digits of each sequence number in it."""
    return _NUMBER.sub("…", text)
