"""Mutants of lanes: which records go side by side, and what is done without a gap."""

from __future__ import annotations

from tests.simulation.mutants.mutant import mutant

DOMAIN, ENGINE = "domain/delivery/lanes.py", "engine/delivery/lanes.py"
# "Records with the same partition key are processed in order" (Lambda's ParallelizationFactor).
ESM = "ParallelizationFactor"

LANES = (
    mutant(
        "a key is in several lanes",
        ESM,
        (
            DOMAIN,
            "self._lanes[lane_of(record.partition_key, count)].append((place, record))",
            "self._lanes[place[0] % count].append((place, record))",
        ),
        arena="lanes",
    ),
    mutant(
        "the checkpoint follows the lane that is furthest",
        ESM,
        (
            DOMAIN,
            "        least = min((lane[0][0] for lane in self._lanes if lane), default=None)\n",
            "        least = max((lane[0][0] for lane in self._lanes if lane), default=None)\n",
        ),
        arena="lanes",
    ),
    mutant(
        "what lanes are ahead is not noted",
        ESM,
        (
            ENGINE,
            (
                "        if not lanes.ahead and not (self._told and self._told.ahead):\n"
                "            self.held.lanes = None\n"
            ),
            "        if True:\n            self.held.lanes = None\n",
        ),
        arena="lanes",
    ),
    mutant(
        "a note of lanes counts for any checkpoint",
        ESM,
        (
            DOMAIN,
            "return DoneAhead.of(self.ahead if counts else {})",
            "return DoneAhead.of(self.ahead)",
        ),
        test="tests/domain/test_lanes.py::"
        "test_a_note_counts_for_the_checkpoints_that_it_was_made_for_alone",
    ),
    mutant(
        "a lane begins its next call before the last one is over",
        ESM,
        (
            ENGINE,
            "            if index not in self._tasks and self._lanes.waiting(index, 1):\n",
            "            if self._lanes.waiting(index, 1):\n",
        ),
        (ENGINE, "            del self._tasks[index]\n", "            self._tasks.pop(index, 0)\n"),
        arena="lanes",
    ),
    mutant(
        "a shard ends while its lanes are at work",
        ESM,
        (
            ENGINE,
            "        await self._finish_open()\n        await super().finish()\n",
            "        await super().finish()\n",
        ),
        arena="lanes",
    ),
    mutant(
        "a stopped shard's other lanes go on",
        ESM,
        (ENGINE, "while not (self._is_resting or self._failure):", "while True:"),
        test="tests/engine/worker_side/test_lanes.py::"
        "test_a_stop_leaves_the_other_lanes_where_they_are_and_a_resume_repeats_nothing",
    ),
    mutant(
        "after a death the lanes go on side by side",
        "H9",
        (
            ENGINE,
            "return 1 if is_suspect else self.config.parallelism",
            "return self.config.parallelism",
        ),
        test="tests/engine/worker_side/test_lanes.py::"
        "test_after_a_death_there_is_one_lane_until_it_is_known_what_killed",
    ),
    mutant(
        "a shard is begun again while a lane of it is at work",
        ESM,
        (
            ENGINE,
            "        self._is_resting = True\n        while self._tasks:\n",
            (
                "        has_failed, self._is_resting = self._is_resting, True\n"
                "        while self._tasks and not has_failed:\n"
            ),
        ),
        test="tests/engine/worker_side/test_lanes.py::"
        "test_no_shard_is_begun_again_while_a_call_of_a_lane_runs_after_another_one_failed",
    ),
    mutant(
        "a note of lanes names the checkpoint that is to come",
        ESM,
        (ENGINE, "            since=since,\n", "            since=lanes.through or since,\n"),
        test="tests/engine/worker_side/test_lanes.py::"
        "test_a_death_between_a_note_and_its_checkpoint_repeats_nothing_of_what_was_noted",
    ),
)
