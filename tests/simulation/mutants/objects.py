"""Mutants of handler objects: what an object is told, in which order, and how often."""

from __future__ import annotations

from tests.simulation.mutants.mutant import mutant

PROGRESS = "engine/shard/progress.py"
# The life of a record processor: initialize, processRecords, shardEnded or leaseLost, once.
KCL = "KCL ShardRecordProcessor"

OBJECTS = (
    mutant(
        "records come before the object is started",
        KCL,
        ("engine/shard/consumer.py", "        await self._progress.begin()\n", ""),
    ),
    mutant(
        "an object whose started failed gets records",
        KCL,
        (
            PROGRESS,
            (
                "        while self.ports.dispatcher.has_hooks and not self.is_begun:\n"
                "            await self.offer(hook=Hook.STARTED)\n"
            ),
            ("        with suppress(Halted):\n            await self.offer(hook=Hook.STARTED)\n"),
        ),
    ),
    mutant(
        "an object whose last hook failed is told another one",
        KCL,
        (
            PROGRESS,
            "if hook is not None and (hook.is_last or result.error is None):",
            "if hook is not None and result.error is None:",
        ),
        test="tests/engine/worker_side/test_hooks.py::"
        "test_an_object_whose_stopping_fails_while_its_lease_is_lost_is_told_nothing_more",
    ),
    mutant(
        "SHARD_END is written before the object knows of it",
        KCL,
        (
            PROGRESS,
            "        while self.is_begun:\n            await self.offer(hook=Hook.ENDED)\n",
            "        while False:\n            await self.offer(hook=Hook.ENDED)\n",
        ),
    ),
    mutant(
        "an object is kept for the next life of its shard",
        KCL,
        (
            PROGRESS,
            "        self.idle_failures = 0\n        self.is_begun = False\n",
            (
                "        self.idle_failures = 0\n"
                "        self.is_begun = self.ports.dispatcher.has_hooks\n"
            ),
        ),
    ),
)
