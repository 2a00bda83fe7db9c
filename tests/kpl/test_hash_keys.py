"""Where a record belongs: MD5 of its key, or the explicit hash key instead."""

import pytest

from shardfleet.errors import InvalidRecord
from shardfleet.kpl.hash_keys import (
    MAX_HASH_KEY,
    check_partition_key,
    effective_hash,
    hash_of_partition_key,
)


@pytest.mark.parametrize(
    ("partition_key", "digest"),
    [  # md5sum of the UTF-8 text
        ("a", "0cc175b9c0f1b6a831c399e269772661"),
        ("ключ", "c3657b66c60a307292aae11f07b04ae7"),
    ],
)
def test_a_partition_key_hashes_to_its_md5_as_an_unsigned_big_endian_number(partition_key, digest):
    assert hash_of_partition_key(partition_key) == int(digest, 16)


def test_the_largest_hash_keys_are_not_negative():
    # md5sum of "0": its first bit is set, so a signed reading would be negative.
    assert hash_of_partition_key("0") == 0xCFCD208495D565EF66E7DFF9F98764DA


def test_the_explicit_hash_key_wins():
    assert effective_hash("a", "0") == 0
    assert effective_hash("a", str(2**128 - 1)) == MAX_HASH_KEY
    assert effective_hash("a", None) == hash_of_partition_key("a")


@pytest.mark.parametrize(
    "text",
    ["", "-1", "+1", " 1", "1\n", "01", "1_0", "0x1", "1.0", "\u0661", str(2**128), "9" * 5000],
)
def test_what_is_no_hash_key_is_refused_with_the_allowed_range(text):
    with pytest.raises(InvalidRecord, match=r"from 0 to 2\*\*128-1"):
        effective_hash("a", text)


@pytest.mark.parametrize("partition_key", ["k", "k" * 256, "鍵" * 256])
def test_partition_keys_of_1_to_256_characters_are_accepted(partition_key):
    check_partition_key(partition_key)


@pytest.mark.parametrize(
    ("partition_key", "complaint"),
    [("", "0 characters"), ("k" * 257, "257 characters"), ("k\ud800", "surrogate at character 1")],
)
def test_other_partition_keys_are_refused_with_what_was_found(partition_key, complaint):
    with pytest.raises(InvalidRecord, match=complaint):
        check_partition_key(partition_key)
