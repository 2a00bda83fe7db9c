"""The example that buffers to S3 in a simulated fleet: kills, freezes, reshards, handovers."""

import dataclasses
import importlib.util
import random
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.events.worker import LeaseAdopted
from shardfleet_testkit import checkers
from shardfleet_testkit.checkers import Checker
from shardfleet_testkit.simulation import Options, run_seed
from shardfleet_testkit.simulation.play import Play
from shardfleet_testkit.simulation.sink import Sink, current_sink

EXAMPLE = Path(__file__).parents[2] / "functions/examples/buffer_to_s3/handler.py"
# They know of records that were returned from, not of what was checkpointed: the two below do.
OF_AUTO = (
    checkers.RepetitionsExplained,
    checkers.RepetitionsBounded,
    checkers.ProgressIsStored,
    checkers.OrderWithinKey,
)
SEEDS = range(1, 9)  # 1,000 of them ran once, without a violation.


class Bucket:
    """S3, in the outside world of the simulation: it refuses, and its answers get lost."""

    def put_object(self, *, Bucket, Key, Body):  # noqa: N803 - boto3's
        assert Bucket == "clicks"
        current_sink().put(Key, [int(line) for line in Body.splitlines()])


class RepeatsFromTheCheckpoint(Checker):
    """Who adopts a shard is handed nothing that was checkpointed before."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self._from = {}

    def told(self, at_ms, by, event):
        if isinstance(event, LeaseAdopted):
            number, _, sub = event.checkpoint.partition(":")
            self._from[by.name, event.lease_key] = ExtendedSequenceNumber(number, int(sub or 0))

    def record_handled(self, handled):
        entry, done = handled.entry, self._from.get((handled.by.name, handled.entry.shard_id))
        if done is None or done.is_sentinel:
            return
        if entry.position <= (int(done.sequence_number), done.sub_sequence_number):
            text = f"{handled.by.name} is handed {entry}, which was checkpointed: {done}"
            self.found(handled.at_ms, entry.shard_id, text)


class FilesAreWhole(Checker):
    """Files are stretches of a shard without gaps, and hold all up to its checkpoint, always."""

    def lease_written(self, write):
        after = write.after
        if after is None or not (after.is_finished or not after.checkpoint.is_sentinel):
            return
        done = after.checkpoint
        reach = (float("inf"), 0)
        if not after.is_finished:
            reach = (int(done.sequence_number), done.sub_sequence_number)
        entries = self.ledger.shards[after.lease_key].entries
        due = {int(entry.data) for entry in entries if entry.position <= reach}
        kept = {number for file in files_of(after.lease_key) for number in file}
        if missing := due - kept:
            text = f"checkpointed {done}, but in no file: {sorted(missing)}"
            self.found(write.at_ms, after.lease_key, text)

    def over(self, at_ms, *, keys):
        del keys
        for shard_id, shard in self.ledger.shards.items():
            order = {int(entry.data): place for place, entry in enumerate(shard.entries)}
            through = -1
            for numbers in files_of(shard_id):
                places = [order[number] for number in numbers]
                if any(b != a + 1 for a, b in pairwise(places)):
                    self.found(at_ms, shard_id, f"a file with a gap: {numbers}")
                if places[0] > through + 1:
                    self.found(at_ms, shard_id, f"a file behind a gap: {numbers}")
                through = max(through, places[-1])


def files_of(shard_id):
    return [e.value for e in SINK.effects if e.key.startswith(f"{shard_id}/")]


SINK = Sink()
KEPT = tuple(kind for kind in checkers.CHECKERS if kind not in OF_AUTO)


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    spec = importlib.util.spec_from_file_location("buffer_to_s3", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys.modules["s3_files"], "s3", Bucket)
    monkeypatch.setenv("BUFFER_BUCKET", "clicks")
    return module


def run(seed, handler, **options):
    chance = random.Random(f"{seed}/buffer")

    def reshape(shape):
        config = replace(
            shape.config,
            checkpoint="manual",
            max_open_records=chance.choice((3, 10, 50)),
            max_open_age_ms=chance.choice((2_000, 10_000, 60_000)),
            max_turn_ms=70_000,
        )
        # A shard is forgotten once all of it was handed over; what is open then would be a loss.
        return dataclasses.replace(shape, config=config, forget_most_s=1e6)

    play = Play(
        handler=handler,
        records=tuple((f"key-{n % 17}", str(n).encode()) for n in range(400)),
        hours=0.05,
        sink=SINK,
    )
    return run_seed(
        Options(
            seed=seed,
            play=play,
            reshape=reshape,
            checkers=(*KEPT, RepeatsFromTheCheckpoint, FilesAreWhole),
            **options,
        )
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_files_have_no_gaps_and_repeat_from_the_checkpoint(example, seed):
    result = run(seed, example.Buffer)
    assert not result.violations
    assert result.records == 400


def found_by(handler, checker):
    """Tell whether one of a few seeds shows a checker what a handler does wrong."""
    found = (run(seed, handler).violations for seed in (4, *range(1, 40)))
    return any(violation.checker == checker.__name__ for each in found for violation in each)


def test_a_buffer_that_checkpoints_before_it_writes_is_found(example):
    write = example.write

    def hasty(shard, records):
        shard.checkpoint()
        return write(shard, records)

    example.write = hasty
    assert found_by(example.Buffer, FilesAreWhole)


def test_a_buffer_that_outlives_its_lease_is_found(example):
    """As a module's own dict would: what was open elsewhere, and came again, is in it still."""
    kept = {}

    class Shared(example.Buffer):
        def started(self, shard):
            self.records = kept.get(shard.shard_id, ())

        def handle(self, batch):
            super().handle(batch)
            kept[batch.shard_id] = self.records

    assert found_by(Shared, FilesAreWhole)
