"""
Ways of delivering: what each asks of the rest of a fleet, in one table.

Configuration, runtime and test kit read it, never an option's value. What carries a way out is a
module of :mod:`shardfleet.engine.delivery`, named in :mod:`shardfleet.runtime.delivering`.
"""

from __future__ import annotations

from msgspec import Struct


class Way(Struct, frozen=True):
    """
    What a way of delivering asks of the rest.

    Attributes:
        option: what chooses it.
        off: the option's value without it.
        alone: why no other way goes beside it.
        handler_checkpoints: a record is done when the handler has called ``batch.checkpoint``,
            which an event does not have.
        no_redrive: why given-up records are not handed over once more; empty: they are.

    """

    option: str = ""
    off: object = None
    alone: str = ""
    handler_checkpoints: bool = False
    no_redrive: str = ""


# A fleet has one at most; of two, the later one says why.
WAYS = (
    Way("parallelism", off=1),
    Way(
        "checkpoint",
        off="auto",
        alone=(
            "a checkpoint says that all before it is done, and of calls side by side none knows "
            "that of the others; set checkpoint auto, or work on a batch's records side by side "
            "in the handler"
        ),
        handler_checkpoints=True,
    ),
    Way(
        "tumbling_window_ms",
        off=0,
        alone=(
            "a shard's window has one state, which each call is given by the one before, and "
            "records are done when it is returned"
        ),
        no_redrive=(
            "with tumbling_window_ms nothing is handed over again: the window of these records is "
            "over; redrive them by a fleet without windows, or correct its result"
        ),
    ),
)

PLAIN = Way()
