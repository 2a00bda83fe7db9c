"""Mutants of sleep: hazards H6 and H14, as far as they concern shards that nobody reads."""

from __future__ import annotations

from tests.simulation.mutants.mutant import mutant

DROWSY, PROBER, SLEEP = "engine/shard/sleep.py", "engine/manager/prober.py", "domain/sleep/sleep.py"
_PROBER_TESTS = "tests/engine/manager_side/test_prober.py"

SLEEPERS = (
    mutant(
        "lag is taken for rest",
        "H6",
        (DROWSY, "page.size_bytes or page.lag_ms != 0:", "page.size_bytes:"),
        arena="slow sleepers",
    ),
    mutant(
        "a shard that had records a moment ago sleeps",
        "H6",
        (DROWSY, "page.size_bytes or page.lag_ms != 0:", "page.lag_ms != 0:"),
        arena="sleepers",
    ),
    mutant(
        "a look at a sleeping shard begins at the present",
        "H6",
        (
            PROBER,
            "return StartingPosition(StartKind.AFTER_SEQUENCE_NUMBER, nap.after)",
            "return StartingPosition(StartKind.AT_TIMESTAMP, instant_ms=self._clock.now_ms())",
        ),
        arena="sleepers without iterators",
    ),
    mutant(
        "the end of a sleeping shard wakes nobody",
        "H6",
        (
            PROBER,
            '            return Found.END, ""\n',
            "            return Found.NOTHING, glance.iterator\n",
        ),
        arena="sleepers",
    ),
    mutant(
        "a shard that cannot be looked at sleeps on",
        "H6",
        (SLEEP, "    if failures >= FAILURES_MOST:\n", "    if not failures:\n"),
        arena="sleepers without iterators",
    ),
    mutant(
        "a nap is believed whatever the lease says",
        "H6",
        (SLEEP, "        elif lease.checkpoint != nap.done:\n", "        elif not nap.done:\n"),
        test="tests/domain/test_sleep.py::test_naps_last_or_are_taken_away",
    ),
    mutant(
        "shards sleep beside another application",
        "H6",
        (
            "domain/turn.py",
            "snapshot.naps, leases, off=off, now_ms",
            "snapshot.naps, leases, off=None, now_ms",
        ),
        test=f"{_PROBER_TESTS}::"
        "test_somebody_else_in_the_lease_table_switches_sleep_off_until_an_hour_without_them",
    ),
    mutant(
        "the manager forgets where it looked",
        "H14",
        (PROBER, "            await self._record.store_glances(self._glances)\n", ""),
        test=f"{_PROBER_TESTS}::test_iterators_are_stored_before_they_are_too_old_"
        "and_not_at_each_look",
    ),
    mutant(
        "a long sleep is told as a loss",
        "H6",
        (
            PROBER,
            "                await self._tips.mark(key, done=str(nap.done), at_ms=glance.quiet_ms)\n",
            "                pass\n",
        ),
        test=f"{_PROBER_TESTS}::test_when_a_shard_wakes_it_is_on_record_that_it_was_read_to_its_"
        "tip_until_then",
    ),
    mutant(
        "an empty answer with lag wakes nobody",
        "H6",
        (PROBER, "        if page.millis_behind_latest != 0:\n", "        if page is None:\n"),
        test=f"{_PROBER_TESTS}::test_an_empty_answer_with_lag_wakes",
    ),
    mutant(
        "no look between two turns",
        "H14",
        (
            "engine/manager/loop.py",
            "            if await self._looks():\n",
            "            if self._end_ms < 0:\n",
        ),
        test=f"{_PROBER_TESTS}::"
        "test_an_invocation_stays_for_the_looks_that_the_schedule_is_too_rare_for",
    ),
)
