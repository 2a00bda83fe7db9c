"""
Memory ports, a virtual clock and whole fleets in simulation: the public test kit.

Importing it loads no adapter, no SDK and no pytest: pytest itself loads it at every start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardfleet_testkit.pytest_plugin import Fleet, FleetRun
    from shardfleet_testkit.simulation.running import Options, RunResult, run_seed, shrink, story
    from shardfleet_testkit.simulation.sink import Sink, SinkError, current_sink

__all__ = [
    "Fleet",
    "FleetRun",
    "Options",
    "RunResult",
    "Sink",
    "SinkError",
    "current_sink",
    "run_seed",
    "shrink",
    "story",
]

_HOMES = {
    **dict.fromkeys(("Fleet", "FleetRun"), "shardfleet_testkit.pytest_plugin"),
    **dict.fromkeys(
        ("Options", "RunResult", "run_seed", "shrink", "story"),
        "shardfleet_testkit.simulation.running",
    ),
    **dict.fromkeys(("Sink", "SinkError", "current_sink"), "shardfleet_testkit.simulation.sink"),
}


def __getattr__(name: str) -> Any:
    """Load what a name of ``__all__`` stands for when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
