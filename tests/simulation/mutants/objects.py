"""Mutants of handler objects: what an object is told, in which order, and how often."""

from __future__ import annotations

from tests.simulation.mutants.mutant import mutant

DELIVERY = "engine/shard/delivery.py"
# The life of a record processor: initialize, processRecords, shardEnded or leaseLost, once.
KCL = "KCL ShardRecordProcessor"

OBJECTS = (
    mutant(
        "records come before the object is started",
        KCL,
        ("engine/shard/consumer.py", "        await self._delivery.begin()\n", ""),
    ),
    mutant(
        "an object whose started failed gets records",
        KCL,
        (
            DELIVERY,
            (
                "        while self._ports.dispatcher.has_hooks and not self._is_begun:\n"
                "            await self._offer(must_flush=False, hook=Hook.STARTED)\n"
            ),
            (
                "        with suppress(Halted):\n"
                "            await self._offer(must_flush=False, hook=Hook.STARTED)\n"
            ),
        ),
    ),
    mutant(
        "an object whose last hook failed is told another one",
        KCL,
        (
            DELIVERY,
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
            DELIVERY,
            "lambda: self.has_open or self._is_begun, hook=Hook.ENDED",
            "lambda: self.has_open, hook=Hook.ENDED",
        ),
    ),
    mutant(
        "an object is kept for the next life of its shard",
        KCL,
        (
            DELIVERY,
            "        self._idle_failures = 0\n        self._is_begun = False\n",
            (
                "        self._idle_failures = 0\n"
                "        self._is_begun = self._ports.dispatcher.has_hooks\n"
            ),
        ),
    ),
)
