"""Whatever goes in comes out: count in = count out, for any records and for any damage."""

from hypothesis import given
from hypothesis import strategies as st

from shardfleet.kpl.deaggregate import ExpansionLimits, UserRecord, Verdict
from shardfleet.kpl.hash_keys import MAX_HASH_KEY, effective_hash
from shardfleet.kpl.messages_pb2 import AggregatedRecord
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import AggregateBuilder, aggregate

keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
hash_keys = st.integers(0, MAX_HASH_KEY)
payloads = st.binary(max_size=40) | st.binary(max_size=20).map(b"\xf3\x89\x9a\xc2".__add__)
records = st.builds(OutgoingRecord, keys, payloads, st.none() | hash_keys.map(str))
few_keys = st.sampled_from(["a", "b", "ключ"])
repeating = st.builds(OutgoingRecord, few_keys, payloads, st.sampled_from([None, "0", "7"]))
batches = st.lists(records | repeating, min_size=1, max_size=30)


@st.composite
def damaged(draw, data):
    """Change, insert or remove some bytes, or cut the end off."""
    harmed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(harmed)))
        stop = min(len(harmed), start + draw(st.integers(0, 4)))
        harmed[start:stop] = draw(st.binary(max_size=4))
    return bytes(harmed[: draw(st.integers(0, len(harmed)))] if draw(st.booleans()) else harmed)


def contents(found):
    return [OutgoingRecord(r.partition_key, r.data, r.explicit_hash_key) for r in found.records]


@given(batches)
def test_what_is_aggregated_is_read_again_in_full_and_in_order(read, batch):
    found = read(aggregate(batch))
    assert contents(found) == batch
    assert [r.sub_sequence_number for r in found.records] == list(range(len(batch)))
    assert (found.verdict, found.last_sub_sequence) == (Verdict.EXPANDED, len(batch) - 1)


@given(batches)
def test_our_writer_agrees_with_the_protobuf_library(framed, batch):
    message = AggregatedRecord()
    pks = list(dict.fromkeys(r.partition_key for r in batch))
    ehks = list(dict.fromkeys(r.explicit_hash_key for r in batch if r.explicit_hash_key))
    message.partition_key_table.extend(pks)
    message.explicit_hash_key_table.extend(ehks)
    for record in batch:
        added = message.records.add(
            partition_key_index=pks.index(record.partition_key), data=record.data
        )
        if record.explicit_hash_key is not None:
            added.explicit_hash_key_index = ehks.index(record.explicit_hash_key)
    assert aggregate(batch) == framed(message.SerializeToString())


@given(batches, st.integers(400, 2000), st.integers(1, 10))
def test_a_producer_that_asks_first_loses_nothing_and_keeps_the_limits(
    read, batch, max_bytes, max_records
):
    limits = {"max_bytes": max_bytes, "max_records": max_records}
    builders = [AggregateBuilder(**limits)]
    for record in batch:
        if builders[-1].is_full_for(record):
            builders.append(AggregateBuilder(**limits))
        builders[-1].add(record)
    built = [builder.build() for builder in builders]
    assert [record for each in built for record in contents(read(each.data))] == batch
    for builder, each in zip(builders, built, strict=True):
        assert len(each.data) == builder.size_bytes <= max_bytes
        assert len(contents(read(each.data))) == len(builder) <= max_records


@given(st.data(), batches)
def test_damage_leaves_either_all_the_contents_or_exactly_the_raw_record(read, data, batch):
    intact = aggregate(batch)
    harmed = data.draw(damaged(intact))
    found = read(harmed)
    if harmed == intact:
        assert contents(found) == batch
    else:
        assert found.records == (UserRecord("outer", None, harmed, 0),)
        assert found.verdict in (Verdict.PLAIN, Verdict.BAD_DIGEST)


def reads_as_all_or_raw(found, data, body):
    """Say whether the result is the raw record, or as many records as the parser counts."""
    if found.aggregated:
        indexes = [r.sub_sequence_number for r in found.records]
        return indexes == list(range(len(AggregatedRecord.FromString(body).records)))
    return found.records == (UserRecord("outer", None, data, 0),)


@given(st.data(), batches)
def test_a_damaged_body_with_a_valid_digest_never_raises_and_loses_nothing(
    read, framed, data, batch
):
    body = data.draw(damaged(aggregate(batch)[4:-16]))
    harmed = framed(body)
    # A hash range that covers everything: nothing may be discarded, whatever the keys became.
    found = read(harmed, hash_range=(0, MAX_HASH_KEY), policy="kpl")
    assert reads_as_all_or_raw(found, harmed, body)


@given(st.binary(max_size=200))
def test_any_bytes_in_a_valid_frame_never_raise_and_are_never_lost(read, framed, body):
    assert reads_as_all_or_raw(read(framed(body)), framed(body), body)


@given(batches, st.tuples(hash_keys, hash_keys).map(sorted))
def test_policy_kpl_keeps_all_or_discards_all(read, batch, bounds):
    first, last = bounds
    hashes = [effective_hash(r.partition_key, r.explicit_hash_key) for r in batch]
    found = read(aggregate(batch), hash_range=(first, last), policy="kpl")
    if all(first <= each <= last for each in hashes):
        assert (contents(found), found.dropped) == (batch, 0)
    else:
        assert (contents(found), found.dropped) == ([], len(batch))
    assert found.last_sub_sequence == len(batch) - 1


@given(batches, st.integers(1, 40), st.integers(1, 1500))
def test_limits_deliver_all_or_the_raw_record(read, batch, max_sub_records, max_expanded_bytes):
    data = aggregate(batch)
    found = read(data, limits=ExpansionLimits(max_sub_records, max_expanded_bytes))
    expanded = sum(
        len(r.data) + len(r.partition_key.encode()) + len(r.explicit_hash_key or "") for r in batch
    )
    if len(batch) > max_sub_records:
        expected = Verdict.TOO_MANY_RECORDS
    elif expanded > max_expanded_bytes:
        expected = Verdict.TOO_MANY_BYTES
    else:
        expected = Verdict.EXPANDED
    assert found.verdict is expected
    assert contents(found) == (batch if found.aggregated else [OutgoingRecord("outer", data)])
