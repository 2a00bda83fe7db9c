"""What carries out a fleet's way of delivering: the one place that names them all."""

from __future__ import annotations

from collections.abc import Callable

from shardfleet.config import FleetConfig
from shardfleet.engine.shard.progress import Progress

# The imports stand in functions: what is off is not waited for at a cold start.


def _lanes() -> type[Progress]:
    from shardfleet.engine.delivery.lanes import LaneProgress  # noqa: PLC0415

    return LaneProgress


def _windows() -> type[Progress]:
    from shardfleet.engine.delivery.windows import WindowProgress  # noqa: PLC0415

    return WindowProgress


def _manual() -> type[Progress]:
    from shardfleet.engine.delivery.manual import ManualProgress  # noqa: PLC0415

    return ManualProgress


# By the options that choose them, see `shardfleet.domain.delivery.ways.WAYS`.
PROGRESS: dict[str, Callable[[], type[Progress]]] = {
    "": lambda: Progress,
    "parallelism": _lanes,
    "tumbling_window_ms": _windows,
    "checkpoint": _manual,
}


def progress_of(config: FleetConfig) -> type[Progress]:
    """Return what carries out a fleet's way of delivering."""
    return PROGRESS[config.way.option]()
