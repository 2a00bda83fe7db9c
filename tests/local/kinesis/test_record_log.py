"""The log of one shard: places survive trimming, sizes add up, reads are bounded."""

import pytest

from shardfleet_local.kinesis.record_log import RecordLog, StoredRecord
from shardfleet_local.kinesis.sequence import SequenceMint

# More than twice what the log lets pile up before it gives memory back.
MANY = 10_000


def number(index):
    return f"{index:056d}"


@pytest.fixture
def log():
    """A log of MANY records: the n-th has number n, arrived at n ms, and has n % 10 + 1 bytes."""
    made = RecordLog()
    for index in range(MANY):
        record = StoredRecord({"SequenceNumber": number(index)})
        made.append(record, arrival_ms=index, size_bytes=index % 10 + 1)
    return made


def read(log, offset, limit=100, max_bytes=10**9):
    found = log.read(offset, limit=limit, max_bytes=max_bytes)
    return [int(record["SequenceNumber"]) for record in found.records], found


@pytest.mark.parametrize("trimmed", [0, 1, 4095, 4097, 5001, 9990, MANY])
def test_an_offset_means_the_same_record_before_and_after_trimming(log, trimmed):
    log.trim(trimmed)
    assert (log.oldest, log.end) == (trimmed, MANY)
    for offset in (0, trimmed, 9_995):
        first = max(offset, trimmed)
        assert read(log, offset, limit=3)[0] == list(range(first, min(first + 3, MANY)))


@pytest.mark.parametrize("trimmed", [0, 4095, 5001, 9_950])
def test_places_are_found_by_number_and_by_time_after_trimming(log, trimmed):
    log.trim(trimmed)
    assert log.offset_at_sequence(number(9_960)) == log.offset_at_time(9_960) == 9_960
    assert log.offset_after_sequence(number(9_960)) == 9_961
    assert log.offset_at_sequence(number(0)) == max(trimmed, 0)
    assert log.arrival_ms(9_960) == 9_960
    assert log.sequence_number(9_960) == number(9_960)


@pytest.mark.parametrize("trimmed", [0, 5001, 9_000])
def test_a_read_is_bounded_by_bytes_wherever_the_log_begins(log, trimmed):
    log.trim(trimmed)
    # Ten records in a row have 55 bytes.
    read_numbers, found = read(log, 9_000, max_bytes=55)
    assert read_numbers == list(range(9_000, 9_010))
    assert (found.size_bytes, found.next_offset) == (55, 9_010)
    assert read(log, 9_000, max_bytes=54)[1].size_bytes == 45
    assert read(log, log.oldest, max_bytes=54)[1].size_bytes <= 54


def test_a_record_larger_than_the_bound_is_read_alone(log):
    assert read(log, 9, max_bytes=3)[0] == [9]


def test_at_the_end_nothing_is_read(log):
    numbers, found = read(log, MANY)
    assert numbers == []
    assert (found.next_offset, found.size_bytes) == (MANY, 0)


def test_a_log_trimmed_to_nothing_goes_on_at_its_offset(log):
    log.trim(MANY)
    log.append(StoredRecord({"SequenceNumber": number(MANY)}), arrival_ms=MANY, size_bytes=7)
    numbers, found = read(log, 0)
    assert (numbers, found.size_bytes, found.next_offset) == ([MANY], 7, MANY + 1)


def test_trimming_gives_memory_back(log):
    log.trim(9_000)
    assert len(log._records) == 1_000


def test_numbers_grow_even_if_the_time_given_goes_back():
    mint = SequenceMint(created_ms=1_000)
    numbers = [int(mint.mint(0, at_ms)) for at_ms in (1_000, 5_000, 2_000, 5_000)]
    assert numbers == sorted(set(numbers))
    assert int(mint.last) == numbers[-1]
