"""`shardfleet rewind`: what its preview says."""

from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON
from shardfleet_ops.cli.rewind import _preview
from shardfleet_ops.operate.rewind import RewindPlan
from shardfleet_ops.positions.rewinds import RewindRow, RewindState, RewindTarget


def preview_of(**fields):
    given = {"state": RewindState.SET_BACK, "checkpoint": "7", "to": "TRIM_HORIZON", "records": 9}
    row = RewindRow(lease_key="shard-1", **{**given, **fields})
    return list(_preview(RewindPlan({"shard-1": RewindTarget(AT_TRIM_HORIZON)}, (row,), ()), 0))


def test_what_was_handled_beyond_the_checkpoint_is_told_beside_the_count():
    (line, _) = preview_of(beyond=3, bytes=27)
    assert line == (
        "shard-1 from 7 back to TRIM_HORIZON: 9 records (27 bytes, 3 of them beyond the "
        "checkpoint, handled already) will come again"
    )
    assert "beyond" not in preview_of()[0]


def test_that_a_stopped_shard_stays_stopped_is_told():
    (_, line, _) = preview_of(is_stopped=True)
    assert line == (
        "  it is stopped, and stays so: nothing of it comes before `shardfleet resume shard-1`"
    )


def test_where_lanes_are_further_than_the_place_it_says_that_the_shard_stays_there():
    (line, why, _) = preview_of(to="7", beyond=9, bytes=27, why="not all before that was done")
    assert line == (
        "shard-1 again from 7: 9 records (27 bytes, 9 of them beyond the checkpoint, handled "
        "already) will come again"
    )
    assert why == "  not all before that was done"
