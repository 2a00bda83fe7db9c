"""The example that buffers to S3: its cuts, a bucket that refuses, and a worker that dies."""

import importlib.util
import sys
from pathlib import Path

import pytest

from shardfleet.runtime.handler_call import HandlerCaller
from shardfleet.runtime.handler_loading import as_handler
from tests.engine.worker_side.steps_kit import deaths
from tests.engine.worker_side.worker_kit import World, key
from tests.virtual import virtual

EXAMPLE = Path(__file__).parents[3] / "functions/examples/buffer_to_s3/handler.py"
MANUAL = {"handler_timeout_ms": 2_000, "turn_margin_ms": 3_000, "checkpoint": "manual"}


class Bucket:
    def __init__(self):
        self.files, self.puts, self.refusals = {}, [], 0

    def put_object(self, *, Bucket, Key, Body):  # noqa: N803 - boto3's
        assert Bucket == "clicks"
        if self.refusals:
            self.refusals -= 1
            raise OSError("S3 is away")
        self.files[Key] = [int(line) for line in Body.splitlines()]
        self.puts.append(self.files[Key])


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    spec = importlib.util.spec_from_file_location("buffer_to_s3", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("BUFFER_BUCKET", "clicks")
    return module


def a_world(example, bucket, **config):
    handler = as_handler(example.Buffer, name="buffer_to_s3:Buffer")
    caller = HandlerCaller(handler, context=None, source=None, now_ms=None)

    async def handle(batch):
        return caller.call(batch)

    async def tell(hook, shard):
        return caller.call(shard, hook)

    sys.modules[example.write.__module__].s3 = lambda: bucket
    world = World(script=handle, **MANUAL, **config)
    world.handler.hooks = tell
    return world


@virtual
async def test_files_are_cut_by_size_and_by_time_and_named_by_what_is_in_them(example):
    bucket = Bucket()
    world = a_world(example, bucket, max_open_bytes=4, max_open_age_ms=5_000)
    world.put(1, 6)
    await world.turn(turn_ms=30_000)
    assert [*bucket.files.values()] == [[1, 2, 3, 4], [5, 6]]
    numbers = world.stream.sequence_numbers(key(0))
    assert [*bucket.files] == sorted(bucket.files)
    for name, first, last in zip(bucket.files, (0, 4), (3, 5), strict=True):
        given = f"{numbers[first]:0>56}.000000-{numbers[last]:0>56}.000000"
        assert name == f"{key(0)}/{given}"
    assert str(world.lease().checkpoint) == numbers[-1]


@virtual
async def test_while_s3_refuses_nothing_is_checkpointed_and_nothing_repeated_in_a_file(example):
    bucket = Bucket()
    bucket.refusals = 3
    world = a_world(example, bucket, max_open_records=3)
    world.put(1, 7)
    await world.turn(turn_ms=60_000)
    assert bucket.puts == [[1, 2, 3], [4, 5, 6], [7]]


def test_a_death_at_any_step_leaves_files_without_gaps_that_repeat_the_last_one_at_most(example):
    buckets = []

    async def prepared():
        buckets.append(Bucket())
        world = a_world(example, buckets[-1], max_open_records=3, checkpoint_ms=0)
        world.put(1, 8)
        return world

    for _, where in deaths(prepared, every=3, steps_least=30):
        files = buckets[-1].puts
        assert sorted({n for file in files for n in file}) == list(range(1, 9)), where
        through = 0
        for file in files:
            assert file == list(range(file[0], file[-1] + 1)), where
            assert through - 2 <= file[0] <= through + 1, where
            through = max(through, file[-1])
