"""Flight records as the tests use them: a given file, or made up, 20,000 of either."""

import json
import os
import random
from pathlib import Path

COUNT = 20_000
GIVEN = "SHARDFLEET_TEST_FLIGHTS"
"""Environment variable: a file of JSON lines with date, delay, distance, origin."""

_AIRPORTS = ["ATL", "BWI", "DEN", "DTW", "HNL", "LAS", "MHT", "OAK", "ORD", "PHX", "SFO", "SLC"]


def flight_lines(seed):
    """Return JSON lines: those of the given file, else made up."""
    if os.environ.get(GIVEN):
        return Path(os.environ[GIVEN]).read_text("utf-8").splitlines()
    draw = random.Random(seed)
    lines = []
    for number in range(COUNT):
        minute = number * 27 // 10  # A little over a month.
        origin, destination = draw.sample(_AIRPORTS, 2)
        day, hour = 1 + minute // 1_440 % 31, minute // 60 % 24
        flight = {
            "date": f"2001/01/{day:02d} {hour:02d}:{minute % 60:02d}",
            "delay": draw.randint(-60, 600),
            "distance": draw.randint(80, 4_900),
            "origin": origin,
            "destination": destination,
        }
        lines.append(json.dumps(flight))
    return lines
