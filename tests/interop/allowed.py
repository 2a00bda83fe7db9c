"""What the Java KCL may say at WARN and ERROR beside a fleet, and why; anything else is a fault."""

import re
from typing import NamedTuple


class Allowed(NamedTuple):
    """A line's beginning, without ids and numbers, and why it is none of our doing."""

    said: str
    why: str


ALLOWED = (
    Allowed(
        "WARN LeaseAssignmentManager: Not able to assign all expiredOrUnAssignedLeases",
        "its first run, before a worker has written its row (§3.2)",
    ),
    Allowed(
        "WARN Http2PingHandler: [Channel: ",
        "its timer is late where the machine is; a ping without an answer ends the connection",
    ),
    Allowed(
        "ERROR Scheduler: Worker.run caught exception, sleeping for n milli seconds! "
        "java.lang.IllegalStateException: LeaderDecider uninitialized",
        "one that upgrades, while it ends in order: what asks for its leader ends last",
    ),
)


def unexpected(logged):
    """Return what was said and is not allowed, with how often."""
    known = re.compile("|".join(re.escape(each.said) for each in ALLOWED))
    return [f"Java, {times} times: {text}" for text, times in logged.items()
            if not known.match(text)]  # fmt: skip
