"""DynamoDB's sizes, from its Developer Guide, "DynamoDB item sizes and formats"."""

import pytest

from shardfleet.domain.item_size import ITEM_BYTES_MOST, value_bytes


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("abc", 3),
        ("é€", 5),
        (True, 1),
        (None, 1),
        (7, 2),
        (1_700_000_000_000, 8),
        ([], 3),
        (["ab", 7], 3 + 2 + 1 + 2 + 1),
        ({"name": "ab"}, 3 + 4 + 2 + 1),
        ({"rows": [["a", None]]}, 3 + 4 + 1 + (3 + 1 + (3 + 1 + 1 + 1 + 1))),
    ],
)
def test_the_size_of_a_value(value, size):
    assert value_bytes(value) == size


def test_an_item_holds_400_kb():
    assert ITEM_BYTES_MOST == 409_600
