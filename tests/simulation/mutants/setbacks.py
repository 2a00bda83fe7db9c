"""Mutants of what stands beside a checkpoint: what counts when that was set back (H20)."""

from __future__ import annotations

from tests.simulation.mutants.mutant import mutant

STAMPS, TIPS = "domain/leases/stamps.py", "engine/shard/start.py"
REWIND, IMPORT = "shardfleet_ops/operate/rewind.py", "shardfleet_ops/operate/positions.py"

_STAMPS = "tests/domain/test_stamps.py"
_SETBACKS = "tests/engine/operating/test_setbacks.py"
_CELLS = f"{_SETBACKS}::test_what_a_preview_counts_comes_again_or_is_told_as_lost"
_RAISED = f"{_SETBACKS}::test_the_generation_is_raised_before_a_lease_is_touched"

SETBACKS = (
    mutant(
        "what is noted counts under any generation",
        "H20",
        (
            STAMPS,
            "return self.generation == generation and lease.lease_counter >= self.counter",
            "return lease.lease_counter >= self.counter",
        ),
        test=f"{_STAMPS}::test_nothing_counts_under_another_generation",
    ),
    mutant(
        "what is noted counts whoever had the lease in between",
        "H20",
        (
            STAMPS,
            "        return switches == 0 or (switches == 1 and lease.lease_owner != self.owner)\n",
            "        return switches >= 0\n",
        ),
        test=f"{_STAMPS}::test_a_lease_that_somebody_else_had_in_between_has",
    ),
    mutant(
        "a tip mark proves something of every position",
        "H20",
        (TIPS, "(mark.done == done and is_recent)", "is_recent"),
        test=_CELLS,
    ),
    mutant(
        "an import of positions leaves the generation as it is",
        "H20",
        (IMPORT, "        if self._state is not None:\n", "        if not self._leases:\n"),
        test=_RAISED,
    ),
    mutant(
        "who ends a shard leaves its generation as it is",
        "H20",
        (
            "shardfleet_ops/operate/pause.py",
            (
                "            await raise_generation("
                "self.state.store.raw, key, now_ms=self.clock.now_ms())\n"
            ),
            "",
        ),
        test=_RAISED,
    ),
    mutant(
        "a lease that is made anew has the generation of the one before",
        "H20",
        (
            "engine/manager/turn.py",
            "            if await leases.get(key) is None:\n",
            "            if not key:\n",
        ),
        test=_RAISED,
    ),
    mutant(
        "a rewind does not count what was done beyond the checkpoint",
        "H20",
        (REWIND, "        last = self.done_ahead.last\n", "        last = None\n"),
        test=_CELLS,
    ),
)
