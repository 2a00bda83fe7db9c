"""Where a record is: what the lease table says of it."""

import pytest

from shardfleet.domain.delivery.stops import StopNote
from shardfleet_ops.explain.answer import Whereabouts, whereabouts
from tests.domain.builders import a_failure, a_lease, a_shard, number

SHARDS = [
    a_shard("0 0-100 closed"),
    a_shard("1 0-50 open from 0"),
    a_shard("2 50-100 closed from 0"),
    a_shard("3 50-100 open from 2"),
]


def ask(position, shard_id, *leases, stops=(), failing=()):
    return whereabouts(
        number(position),
        shard_id,
        leases=[a_lease(line) for line in leases],
        shards=SHARDS,
        stops=dict(stops),
        failing=dict(failing),
    )


@pytest.mark.parametrize(
    ("position", "shard", "leases", "state", "why"),
    [
        ("55", "1", ["1 at 55 by a"], Whereabouts.PROCESSED, "has passed it"),
        ("55:3", "1", ["1 at 55:2 by a"], Whereabouts.PENDING, "a reads it"),
        ("55:2", "1", ["1 at 55:2 by a"], Whereabouts.PROCESSED, "has passed it"),
        ("9", "1", ["1 at 10 by a"], Whereabouts.PROCESSED, "has passed it"),
        ("56", "1", ["1 at 55"], Whereabouts.PENDING, "nobody owns it"),
        ("56", "1", ["1 at SHARD_END"], Whereabouts.PROCESSED, "finished"),
        ("1", "1", ["1 at TRIM_HORIZON by a"], Whereabouts.PENDING, "a reads it"),
        ("1", "1", ["1 at LATEST by a"], Whereabouts.PENDING, "older than the fleet"),
        ("1", "1", ["0 at 5", "1 at TRIM_HORIZON by a from 0"], Whereabouts.WAITING, "after 0"),
        ("1", "3", ["0 at 5"], Whereabouts.WAITING, "after 0"),
        ("1", "0", ["3 at 5 by a from 2"], Whereabouts.PAST, "its descendant 3 has"),
        ("1", "0", ["1 at SHARD_END from 0"], Whereabouts.PAST, "its descendant 1 has"),
        ("1", "3", ["1 at 5"], Whereabouts.UNREAD, "no lease leads to"),
        ("1", "3", ["2 at SHARD_END"], Whereabouts.UNREAD, "no lease leads to"),
    ],
)
def test_a_record_is_where_the_leases_say(position, shard, leases, state, why):
    answer = ask(position, shard, *leases)

    assert answer.state is state
    assert why in answer.why


def test_a_stopped_shard_says_why_unless_it_has_passed_the_record():
    stops = {
        "1": StopNote(
            lease_key="1",
            attempts=3,
            worker_id="w",
            at_ms=1,
            position="55:1",
            error="ValueError: x",
        )
    }

    assert ask("60", "1", "1 at 55 by a", stops=stops).state is Whereabouts.STOPPED
    assert "ValueError: x" in ask("60", "1", "1 at 55 by a", stops=stops).why
    assert ask("54", "1", "1 at 55 by a", stops=stops).state is Whereabouts.PROCESSED


def test_the_answer_names_who_renews_the_lease_and_its_checkpoint():
    answer = ask("60", "1", "1 at 55:2 by b renewed-by a")

    assert (answer.owner, answer.checkpoint) == ("a", "55:2")
    assert ask("60", "1", "1 at SHARD_END by a").owner is None


def test_a_record_whose_worker_fails_says_of_what():
    answer = ask("56", "1", "1 at 55 by a", failing={"a": a_failure()})

    assert answer.state is Whereabouts.PENDING
    assert "a has it but does not read it: its handler cannot be imported" in answer.why


def test_a_record_that_waits_for_an_owner_says_what_a_worker_fails_of():
    failing = {"b": a_failure(message="no tables"), "a": a_failure()}
    answer = ask("56", "1", "1 at 55", failing=failing)

    assert answer.state is Whereabouts.PENDING
    assert answer.why.endswith(
        "nobody owns it, and a fails: its handler cannot be imported: no settings (/o.py, line 3)"
    )
