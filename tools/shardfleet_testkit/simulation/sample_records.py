"""Records for a handler when its user brings none: visitors who look at pages."""

from __future__ import annotations

import json
import random

_VISITORS = 40
_PAGES = ("/", "/cart", "/checkout", "/help", "/search")


def visits(count: int) -> tuple[tuple[str, bytes], ...]:
    """Return that many page views as partition key (the visitor) and JSON; always the same."""
    chance = random.Random(count)
    found = []
    for number in range(1, count + 1):
        visitor = f"visitor-{chance.randrange(_VISITORS)}"
        view = {"visitor": visitor, "page": chance.choice(_PAGES), "number": number}
        found.append((visitor, json.dumps(view).encode()))
    return tuple(found)
