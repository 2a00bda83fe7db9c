"""
A whole fleet in one process from one seed: the production engine on ports that fail.

Its modules are parts of one idea, a world in which everything that happens is drawn from a seed.
"""

from shardfleet_testkit.simulation.running import Options, RunResult, run_seed, shrink, story

__all__ = ["Options", "RunResult", "run_seed", "shrink", "story"]
