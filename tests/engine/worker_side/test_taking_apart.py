"""What a stream record says of itself is what its user records say, each in its field."""

import asyncio

import pytest

from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.engine.shard.deaggregation import Deaggregator
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from shardfleet.records import Record, StreamRecord
from shardfleet_testkit.memory import MemoryEvents
from tests.engine.worker_side.worker_kit import a_config, key

USERS = [OutgoingRecord("a", b"1"), OutgoingRecord("b", b"2", "77")]


def apart(*records, done=None):
    expander = Deaggregator(ShardRef("arn", key(3)), None, config=a_config(), sink=MemoryEvents())
    return list(asyncio.run(expander.expand(records, done)).records)


@pytest.mark.parametrize("encryption", [None, "NONE", "KMS"])
@pytest.mark.parametrize("done", [None, ExtendedSequenceNumber("4")])
def test_every_field_of_a_record_is_in_its_place(encryption, done):
    plain = StreamRecord(b"data", "key", "5", 1_234, encryption)
    many = StreamRecord(aggregate(USERS), "a", "6", 1_235, encryption)
    common = {"shard_id": key(3), "encryption_type": encryption}
    assert apart(plain, many, plain, done=done) == [
        one := Record(
            data=b"data",
            partition_key="key",
            sequence_number="5",
            approximate_arrival_ms=1_234,
            **common,
        ),
        *(
            Record(
                data=user.data,
                partition_key=user.partition_key,
                sequence_number="6",
                sub_sequence_number=number,
                approximate_arrival_ms=1_235,
                explicit_hash_key=user.explicit_hash_key,
                aggregated=True,
                **common,
            )
            for number, user in enumerate(USERS)
        ),
        one,
    ]


def test_what_is_done_is_left_out_to_the_sub_sequence_number():
    plain = [StreamRecord(b"x", "k", str(number), 1) for number in (5, 6)]
    many = StreamRecord(aggregate(USERS), "a", "7", 1)
    after = ExtendedSequenceNumber
    assert [r.sequence_number for r in apart(*plain, many, done=after("5"))] == ["6", "7", "7"]
    assert [r.data for r in apart(*plain, many, done=after("7", 0))] == [b"2"]
    assert apart(*plain, many, done=after("7", 1)) == []
