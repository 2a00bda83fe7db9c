"""Mutants of records that are pushed: what implementations of fan-out get wrong."""

from __future__ import annotations

from tests.simulation.mutants.mutant import mutant

PUSHING, PUSHED = "engine/shard/pushing.py", "adapters/kinesis/pushed.py"

PUSHES = (
    mutant(
        "an event of a subscription is dropped",
        "§8 row 23",
        (
            PUSHING,
            "                page = subscription.take()\n",
            "                page = subscription.take() and subscription.take()\n",
        ),
        arena="pushed",
    ),
    mutant(
        "what is left of an event is dropped",
        "§8 row 23",
        (
            PUSHED,
            "return decode_event(frame.payload)",
            "answer.body.clear()\n" + 16 * " " + "return decode_event(frame.payload)",
        ),
        test="tests/adapters/test_pushed.py::"
        "test_more_than_a_window_of_records_comes_to_a_reader_who_takes_it",
    ),
    mutant(
        "the next subscription begins at the present",
        "§8 row 23",
        (
            PUSHING,
            "                    shard.shard_id, start, wake=found.came.set\n",
            (
                "                    shard.shard_id,\n"
                "                    start if found.subscribed_ms is None else StartingPosition("
                "StartKind.AT_TIMESTAMP, instant_ms=self._clock.now_ms()),\n"
                "                    wake=found.came.set,\n"
            ),
        ),
        arena="pushed",
    ),
    mutant(
        "the last event of a shard is passed over",
        "§8 row 23",
        (
            PUSHING,
            "if page is not None or subscription.is_over:",
            "if (page and page.resume_token) or subscription.is_over:",
        ),
        arena="pushed",
    ),
    mutant(
        "the window of a subscription is never given back",
        "§8 row 23",
        (PUSHED, "        answer.give_back()\n", ""),
        test="tests/adapters/test_pushed.py::"
        "test_more_than_a_window_of_records_comes_to_a_reader_who_takes_it",
    ),
    mutant(
        "a subscription that says nothing is waited for",
        "FLINK-38814",
        (PUSHING, "SILENCE_MS = 35_000", "SILENCE_MS = 86_400_000"),
        test="tests/engine/worker_side/test_pushing.py::"
        "test_a_silent_subscription_is_given_up_after_35_seconds_and_nothing_is_lost",
    ),
)
