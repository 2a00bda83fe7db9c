"""
What a restart changes or leaves out against the offset that its checkpoint ends with.

Each way a query starts, with each way Spark asks, against each store that was and is named: a cell
is refused with words, or brings each record exactly once.
"""

from dataclasses import fields
from itertools import product

import pytest
from msgspec.structs import replace

from shardfleet.errors import ConfigurationError, StreamReplaced
from shardfleet_spark.options.options import read_options
from shardfleet_spark.options.source_options import SourceOptions
from shardfleet_spark.plan.planning import BatchLimits
from shardfleet_spark.read.shard_pages import DataLost, ReadPolicy
from shardfleet_spark.stream_reader import settings_of
from tests.spark.checkpointed import Checkpointed
from tests.spark.memory_seals import MemorySealStore
from tests.spark.test_options_arrive import ACCESS, ARN, PLANNING, READING, names
from tests.spark.test_source_driver import in_query

HISTORIES = (
    "new",
    "committed",
    "offset written",
    "sink done",
    "rolled back",
    "copied",
    "copied with its last batch open",
)
CELLS = [
    pytest.param(*cell, id="-".join(map(str, cell)))
    for cell in product(
        HISTORIES,
        ("store", "none"),
        ("same", "none", "other"),
        ("4.2", "4.0"),
        ("trigger", "available now"),
        ("fails", "tells"),
    )
]
IN_PARTS = BatchLimits(partitions=2, records_per_shard=20)


async def with_history(query, history, *, store, said):
    """Return a query after such a life."""
    life = Checkpointed(query, store, said=said)
    if history == "new":
        return life
    await life.start()
    dies = {"offset written": "offset", "sink done": "sink"}.get(history, "")
    if history == "copied with its last batch open":
        dies = "sink"
    await life.run(2, dies=dies)
    if history == "rolled back":
        await life.run(2)
        life.roll_back(2)
    if history.startswith("copied"):
        original, life = life, life.copied()
        await original.start()
        await original.run(4)
        # Its rows are another sink's.
    return life


@pytest.mark.parametrize(("history", "was", "now", "said", "trigger", "loss"), CELLS)
def test_each_store_that_a_restart_may_name_is_refused_with_words_or_brings_each_record_once(
    history, was, now, said, trigger, loss
):
    async def scenario(query):
        for number in range(100):
            query.stream.put(b"%d" % number, key=str(number))
        first = MemorySealStore() if was == "store" else None
        life = await with_history(query, history, store=first, said=said)
        for number in range(100, 110):
            query.stream.put(b"%d" % number, key=str(number))
        life.store = {"same": first, "none": None, "other": MemorySealStore()}[now]
        life.may_differ = now == "other"

        async def go_on():
            # Spark 4.0 and 4.1 end AvailableNow after a batch: the query is started again, until
            # three runs in a row have brought nothing.
            brought = []
            for _ in range(1 if trigger == "trigger" or said == "4.2" else 30):
                rows = len(life.rows())
                await life.start(until_now=trigger == "available now")
                await life.run()
                brought.append(len(life.rows()) - rows)
                if brought[-3:] == [0, 0, 0]:
                    return

        needs_store = was == "store" and history != "new"
        if needs_store and now == "none":
            with pytest.raises(ConfigurationError, match="set option sealStore"):
                await go_on()
            return
        if needs_store and now == "other" and loss == "fails":
            with pytest.raises(DataLost, match="not in the seal store") as caught:
                await go_on()
            assert "failOnDataLoss" not in str(caught.value)
            return
        await go_on()
        rows = sorted(map(int, life.rows()))
        if needs_store and now == "other":
            # Asked for: what the last batch had comes twice, and that is told.
            assert set(rows) == set(range(110))
            assert any("read again" in each for each in life.told)
        else:
            assert rows == list(range(110))

    in_query(
        scenario, shards=2, limits=IN_PARTS, fail_on_data_loss=loss == "fails", poll_interval_ms=10
    )


# --- the other options

BASE = {"stream": ARN, "startingPosition": "TRIM_HORIZON"}
CHANGED = {**PLANNING, **READING, "startingPosition": "LATEST"}
# What has no part in planning and reading a batch, and where it is seen that it harms none.
ELSEWHERE = {
    "stream": "below: another stream",
    "sealStore": "above: another store",
    "availableNowTarget": "above: available now",
    **dict.fromkeys(
        (*ACCESS, "profile", "storeEndpoint", "streamCalls"),
        "how a service is called: below, another stream",
    ),
    **dict.fromkeys(("publishTo", "publishInterval"), "test_publication.py: beside the batches"),
    "metrics": "test_figures.py: beside the batches",
    "columns": "test_columns_read.py: which columns the same records have",
}


def test_each_option_is_changed_by_a_restart_here_or_named_with_where_it_is():
    assert sorted({*CHANGED, *ELSEWHERE}) == sorted(names(SourceOptions))
    assert not CHANGED.keys() & ELSEWHERE.keys()


def use(query, **options):
    """Let the next process have these options."""
    found = read_options(SourceOptions, {**BASE, **options})
    query.settings = settings_of(found)
    said = [each.name for each in fields(ReadPolicy) if hasattr(found, each.name)]
    query.policy = ReadPolicy(**{name: getattr(found, name) for name in said})


@pytest.mark.parametrize("said", ["4.2", "4.0"])
@pytest.mark.parametrize("store", ["store", "none"])
@pytest.mark.parametrize("history", ["committed", "offset written", "sink done"])
@pytest.mark.parametrize("way", ["given", "left out"])
@pytest.mark.parametrize("name", CHANGED)
def test_each_option_that_a_restart_gives_or_leaves_out_brings_each_record_once(
    name, way, history, store, said
):
    async def scenario(query):
        for number in range(40):
            query.stream.put(b"%d" % number, key=str(number))
        few = {"maxRecordsPerShard": "10", "partitions": "2"}
        before, after = few, {**few, name: CHANGED[name]}
        if way == "left out" and name != "startingPosition":
            before, after = after, few
        use(query, **before)
        life = await with_history(
            query, history, store=MemorySealStore() if store == "store" else None, said=said
        )
        for number in range(40, 45):
            query.stream.put(b"%d" % number, key=str(number))
        written = len(life.offsets)
        use(query, **after)
        await life.start()
        await life.run()
        assert sorted(map(int, life.rows())) == list(range(45))
        # A repeated batch is taken apart as it was planned, the next ones as the options say now.
        emission = query.settings.emission
        new = {"deaggregate": emission.deaggregate, "misrouted": emission.misrouted}
        assert all(each["emit"] == new for each in life.offsets[written:])
        assert len(life.offsets) > written or name not in ("deaggregate", "misrouted")

    in_query(scenario, shards=2)


@pytest.mark.parametrize("loss", ["fails", "tells"])
@pytest.mark.parametrize("said", ["4.2", "4.0"])
@pytest.mark.parametrize("store", ["store", "none"])
@pytest.mark.parametrize("history", ["committed", "offset written", "sink done"])
@pytest.mark.parametrize("stream", ["another", "created again"])
def test_each_other_stream_is_refused_or_read_from_its_beginning_where_losses_are_allowed(
    stream, history, store, said, loss
):
    async def scenario(query):
        for number in range(40):
            query.stream.put(b"%d" % number, key=str(number))
        life = await with_history(
            query, history, store=MemorySealStore() if store == "store" else None, said=said
        )
        old, life.may_differ = life.rows(), True
        await query.clock.sleep_ms(60_000)
        query.stream.create_again(2)
        if stream == "another":
            query.stream._incarnation = replace(query.stream._incarnation, stream_arn=ARN)
        for number in range(1_000, 1_010):
            query.stream.put(b"%d" % number, key=str(number))

        async def go_on():
            await life.start()
            await life.run()

        if stream == "another":
            with pytest.raises(ConfigurationError, match="name the stream that it was"):
                await go_on()
            assert life.rows() == old
        elif loss == "fails":
            with pytest.raises(StreamReplaced, match="deleted and created again"):
                await go_on()
            assert life.rows() == old
        else:
            await go_on()
            new = [number for number in map(int, life.rows()) if number >= 1_000]
            assert sorted(new) == list(range(1_000, 1_010))
            assert life.rows()[: len(old)] == old
            assert any("deleted and created again" in each for each in life.told)

    in_query(
        scenario, shards=2, limits=IN_PARTS, fail_on_data_loss=loss == "fails", poll_interval_ms=10
    )
