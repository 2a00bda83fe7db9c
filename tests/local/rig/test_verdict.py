"""The verdict: each thing that can go wrong is seen, and only that."""

from shardfleet_local.rig.verdict import unsettled_leases, verdict
from tests.local.rig.builders import a_lease, a_line, a_sent, a_shard, shard_id


def three(**more):
    return [a_sent(number, **more) for number in (1, 2, 3)]


def test_what_was_handled_once_and_in_order_passes():
    first, second, third = sent = three()

    found = verdict(sent, [a_line(first, second), a_line(third)], shards=[a_shard(0)])

    assert found.passed
    assert (found.records_in, found.records_handled_distinct, found.duplicates) == (3, 3, 0)


def test_a_record_that_was_never_handled_is_lost():
    first, second, third = sent = three()

    found = verdict(sent, [a_line(first), a_line(third)], shards=[a_shard(0)])

    assert found.lost == (second.number,)
    assert not found.passed


def test_a_repeated_delivery_is_a_duplicate_and_not_out_of_order():
    first, second, third = sent = three()

    found = verdict(
        sent, [a_line(first, second), a_line(first, second, third)], shards=[a_shard(0)]
    )

    assert (found.duplicates, found.out_of_order) == (2, ())
    assert found.passed


def test_a_record_first_handled_after_a_later_one_of_its_key_is_out_of_order():
    first, second, third = sent = three()

    found = verdict(sent, [a_line(second), a_line(first), a_line(third)], shards=[a_shard(0)])

    assert found.out_of_order == (first.number,)
    assert not found.passed


def test_other_keys_may_come_in_any_order():
    sent = [a_sent(1, key="a"), a_sent(2, key="b")]

    assert verdict(sent, [a_line(sent[1]), a_line(sent[0])], shards=[a_shard(0)]).passed


def test_a_changed_payload_matches_nothing():
    first, *rest = sent = three()
    changed = first._replace(digest="other")

    found = verdict(sent, [a_line(changed, *rest)], shards=[a_shard(0)])

    assert (found.foreign, found.lost) == (1, (first.number,))
    assert not found.passed


def test_a_record_whose_reply_was_lost_is_found_by_its_payload():
    first, second, third = sent = three()
    elsewhere = first._replace(receipt=first.receipt._replace(sequence_number="77"))

    found = verdict(sent, [a_line(elsewhere, second, third), a_line(first)], shards=[a_shard(0)])

    assert found.passed
    assert found.duplicates == 1


def test_the_event_contract_tells_equal_records_apart_by_counting_them():
    sent = [a_sent(n, content="same", sequence="50", sub=n) for n in (0, 1, 2)]
    blind = a_line(*sent)._replace(
        records=tuple(r._replace(sub_sequence_number=-1) for r in a_line(*sent).records)
    )

    assert verdict(sent, [blind], shards=[a_shard(0)]).passed
    two = blind._replace(records=blind.records[:2])
    assert len(verdict(sent, [two], shards=[a_shard(0)]).lost) == 1


def test_a_child_before_its_parent_is_done_is_seen():
    parent, last, child = (a_sent(1), a_sent(2, key="b"), a_sent(3, key="c", shard=1))
    shards = [a_shard(0, is_open=False), a_shard(1, parents=(0,))]
    sent = [parent, last, child]

    good = verdict(sent, [a_line(parent, last), a_line(child)], shards=shards)
    bad = verdict(sent, [a_line(parent), a_line(child), a_line(last)], shards=shards)

    assert good.parents_before_children
    assert not bad.parents_before_children
    assert not bad.passed


def test_a_grandchild_waits_for_a_shard_two_generations_back():
    old, young = a_sent(1), a_sent(2, key="b", shard=2)
    shards = [
        a_shard(0, is_open=False),
        a_shard(1, parents=(0,), is_open=False),
        a_shard(2, parents=(1,)),
    ]

    assert not verdict(
        [old, young], [a_line(young), a_line(old)], shards=shards
    ).parents_before_children


CLOSED = a_shard(0, is_open=False)
CHILDREN = [a_shard(1, parents=(0,)), a_shard(2, parents=(0,))]


def test_a_closed_shards_lease_must_stand_at_shard_end():
    leases = [a_lease(0), a_lease(1), a_lease(2)]

    assert unsettled_leases([CLOSED, *CHILDREN], leases) == {
        shard_id(0): "its lease stands at 123, not at SHARD_END"
    }
    assert unsettled_leases([CLOSED, *CHILDREN], [a_lease(0, "SHARD_END")]) == {}


def test_a_lease_may_be_gone_once_every_child_has_started():
    started, fresh = a_lease(1), a_lease(2, "TRIM_HORIZON")

    assert unsettled_leases([CLOSED, *CHILDREN], [started, a_lease(2)]) == {}
    assert shard_id(0) in unsettled_leases([CLOSED, *CHILDREN], [started, fresh])
    assert shard_id(0) in unsettled_leases([CLOSED, *CHILDREN], [started])


def test_a_child_that_is_itself_gone_counts_as_started_if_its_own_children_have():
    shards = [
        CLOSED,
        a_shard(1, parents=(0,), is_open=False),
        a_shard(2, parents=(1,)),
    ]

    assert unsettled_leases(shards, [a_lease(2)]) == {}
    assert set(unsettled_leases(shards, [a_lease(2, "TRIM_HORIZON")])) == {shard_id(0), shard_id(1)}
