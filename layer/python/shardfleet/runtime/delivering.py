"""Which way of delivering a fleet has: the one place that names all four."""

from __future__ import annotations

from shardfleet.config import FleetConfig
from shardfleet.engine.delivery.plain import PlainProgress
from shardfleet.engine.shard.progress import Progress


def progress_of(config: FleetConfig) -> type[Progress]:
    """Return a fleet's way of delivering; what is off is not imported."""
    # No two of the options go together: FleetConfig refuses them.
    if config.parallelism > 1:
        from shardfleet.engine.delivery.lanes import LaneProgress  # noqa: PLC0415

        return LaneProgress
    if config.tumbling_window_ms:
        from shardfleet.engine.delivery.windows import WindowProgress  # noqa: PLC0415

        return WindowProgress
    if config.checkpoint == "manual":
        from shardfleet.engine.delivery.manual import ManualProgress  # noqa: PLC0415

        return ManualProgress
    return PlainProgress
