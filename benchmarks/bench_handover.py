"""
What does it cost to hand a lease over, under load, on the embedded AWS?

Eight shards and two workers, 400 records a second, a handler that takes 2 ms per record. Leases
change hands four at a time until 50 have: begun by the engine's own assigner, ended by the workers.
Counted are records that came twice or never, and how long each shard stood still: from the end of
the old owner's last batch to the end of the next owner's first. KCL 3 gives such a handover up to
40 s (protocol.md §3.5), and its next owner looks for new leases each 10 s.

    python benchmarks/bench_handover.py [--folder DIR]
"""

from __future__ import annotations

from collections.abc import Iterator

import side_by_side
from handovers import hand_over
from side_by_side import Figures

HANDOVERS = 50


def contests() -> Iterator[Figures]:
    done = hand_over(HANDOVERS)
    body = done.body()
    pause, gap = body["pause_ms"], body["usual_gap_ms"]
    yield Figures(
        name="handover",
        compares=f"{HANDOVERS} handovers under load on the embedded AWS",
        summary=(
            f"{body['duplicates']} duplicates, {body['lost']} lost of {body['sent']:,} records; a "
            f"shard pauses {pause['median']:.0f} ms (median), {pause['max']:.0f} ms at most, "
            f"where {gap['median']:.0f} ms lie between two batches anyway"
        ),
        gate="no duplicates, nothing lost, none forced",
        goal="a pause of a second",
        met=not (body["duplicates"] or body["lost"] or body["foreign"] or body["forced"]),
        details=body,
        time_goes_to=(
            "the old owner learns of it at its next renewal, up to 3.3 s later, but "
            "works on until then; the next owner looks twice a second."
        ),
    )


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
