"""
Memory ports, a virtual clock and whole fleets in simulation: the public test kit.

Importing it loads no adapter, no SDK and no pytest: pytest itself loads it at every start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardfleet.faces import loaded_from

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

__getattr__ = loaded_from(__name__, _HOMES, extra="local")
