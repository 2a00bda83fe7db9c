"""A whole fleet in one process from one seed: the production engine on ports that fail."""

from shardfleet.testing.simulation.running import Options, RunResult, run_seed, shrink, story

__all__ = ["Options", "RunResult", "run_seed", "shrink", "story"]
