"""Whom a KCL 2 elects: the first of its owners, in order and then shuffled as Java shuffles."""

import random

import pytest

from shardfleet_ops.migrate.kcl2 import elected

# Of 1, 2, ... owners in order, the place of the one that is first after the JDK's own
# Collections.shuffle(owners, new Random(1947)).
FIRST = (
    0, 0, 2, 3, 4, 2, 2, 2, 3, 8, 6, 9, 12, 4, 10, 11, 13, 11, 0, 14,
    13, 7, 1, 1, 0, 3, 9, 20, 12, 3, 22, 19, 21, 31, 23, 19, 22, 31, 35, 18,
)  # fmt: skip


@pytest.mark.parametrize(("count", "place"), list(enumerate(FIRST, 1)))
def test_it_is_whom_the_jdk_s_shuffle_puts_first(count, place):
    owners = [f"w{number:02}" for number in range(count)]
    random.Random(count).shuffle(owners)

    assert elected(owners * 2) == f"w{place:02}"


@pytest.mark.parametrize(("count", "place"), [(28_800, 25_654), (47_540, 444)])
def test_what_java_draws_again_is_drawn_again_and_nothing_else(count, place):
    # nextInt draws again what would make some places likelier than others: of 47,540 owners, the
    # fewest of whom it does, one number; of 28,800 none, though one is not far from it.
    assert elected(f"w{number:05}" for number in range(count)) == f"w{place:05}"


def test_of_no_owner_none_is_and_names_are_in_javas_order():
    assert elected([]) is None
    # By UTF-16 units: what is beyond 0xFFFF begins with a surrogate, before the private use area.
    assert elected(["\ue000", "\U00010000"]) == "\U00010000"
