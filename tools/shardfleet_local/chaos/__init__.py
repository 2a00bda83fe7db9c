"""
Chaos: the demo's system for minutes, with real processes killed and real replies lost.

    http_messages.py   one request or reply of HTTP/1.1, read from a socket as it is
    faults.py          what can go wrong with one call, and the seeded dice
    proxy.py           the loopback proxy between the fleet and its AWS that does it
    killer.py          kills and freezes worker and manager processes at random
    run.py             all of it at once, with reshards, until the feed is over; then the wait
    outcome.py         the counts, the verdict and `result.json`
"""
