"""Which way of delivering a fleet has: the one place that names them all."""

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


# When a way is a fleet's, and what it is; FleetConfig refuses two at once.
WAYS: list[tuple[Callable[[FleetConfig], object], Callable[[], type[Progress]]]] = [
    (lambda config: config.parallelism > 1, _lanes),
    (lambda config: config.tumbling_window_ms, _windows),
    (lambda config: config.checkpoint == "manual", _manual),
]


def progress_of(config: FleetConfig) -> type[Progress]:
    """Return a fleet's way of delivering; where none applies, the plain one."""
    return next((way() for applies, way in WAYS if applies(config)), Progress)
