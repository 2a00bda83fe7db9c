"""
Every text in JSON that the product reads, and who wrote it.

What others wrote is read by `shardfleet.foreign`, or by msgspec into types; whoever reads it by
`json` alone is found here, and says why that is no foreign text, or catches what may come of it.
"""

import ast
import io
import json
from contextlib import suppress

import pytest

from shardfleet.domain.positions.positions import positions_from_text
from shardfleet.errors import ShardfleetError
from shardfleet.foreign import BYTES_MOST, read_bytes, read_json
from shardfleet_local.dashboard.definition import read_dashboard
from shardfleet_ops.cli.cost import _prices
from shardfleet_ops.cli.templates import read_templates
from shardfleet_ops.operate.given_up import given_up_of
from shardfleet_spark.offsets.seals import noted_losses, seal_from_bytes
from shardfleet_spark.options.starting import start_of
from shardfleet_spark.payload.avro_payload import struct_of_avro
from shardfleet_spark.pipelines import backfill
from shardfleet_spark.pipelines.plan import PipelinePlan
from shardfleet_spark.plan.checkpoints import LocalCheckpoint, read_logs
from tests.test_tidy import ROOT

READ = ("layer/python", "spark", "tools/shardfleet_ops", "cdk", "functions")
CAUGHT = "others' text: ValueError and RecursionError are caught beside it"
OURS = "written by the same program"
# Of a machine that has the file: CDK's own output, this repository's locks, the user's code.
LOCAL = "a file that the CDK, or this repository, has made"
BY_JSON = {
    "cdk/shardfleet_cdk/stack_settings.py": "the context of cdk.json: who deploys wrote it",
    "cdk/shardfleet_cdk/synthesis.py": LOCAL,
    "functions/handler/handler.py": "an example: the user's records",
    "layer/python/shardfleet/adapters/kinesis/decode.py": CAUGHT,
    "layer/python/shardfleet/domain/delivery/filters.py": CAUGHT,
    "layer/python/shardfleet/domain/delivery/windows.py": CAUGHT,
    "layer/python/shardfleet/foreign.py": "here",
    "layer/python/shardfleet/runtime/function_runner.py": CAUGHT,
    "layer/python/shardfleet/runtime/redrive.py": CAUGHT,
    "spark/shardfleet_spark/host/session.py": "Spark's own metadata of the query",
    "spark/shardfleet_spark/payload/parsing.py": OURS,
    "spark/shardfleet_spark/payload/registered.py": OURS,
    "spark/shardfleet_spark/pipelines/draining.py": "Spark's own progress, in the same process",
    "tools/shardfleet_ops/cli/simulate.py": "the output of the handler's own process",
    "tools/shardfleet_ops/cli/templates.py": LOCAL,
    "tools/shardfleet_ops/cli/yaml_output.py": OURS,
    "tools/shardfleet_ops/template/machines.py": "a definition in a template",
}


def readers():
    for folder in READ:
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                match node:
                    case ast.Call(
                        func=ast.Attribute(value=ast.Name("json"), attr="loads" | "load")
                    ):
                        yield str(file.relative_to(ROOT))


def test_who_reads_json_by_json_alone_says_why():
    assert set(readers()) == set(BY_JSON)


def deep(levels):
    return b"[" * levels + b"]" * levels


LEAK = "what-a-body-holds"
HOSTILE = {
    "depth": deep(200_000),
    "depth of objects": b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    "no JSON": LEAK.encode(),
    "cut": b'{"a": "what-a-body-holds',
    "no UTF-8": b'{"a": "\xff"}',
    "infinite": b'{"v": 1e999, "created_ms": 1e999, "calls": 1e999}',
    "no number": b'{"v": NaN}',
    "digits": b'{"v": ' + b"9" * 5_000 + b"}",
    "a list": b"[]",
    "nothing": b"null",
    "a text": b'"what-a-body-holds"',
    "a number": b"7",
}


def of_file(read, name="file.json"):
    def with_file(data, folder):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        return read(folder)

    return with_file


def text_of(data):
    return data.decode("utf-8", errors="surrogateescape")


# What is read of each: a file in a folder, or the bytes themselves.
READERS = {
    "positions": lambda data, _: positions_from_text(text_of(data)),
    "a kept record": lambda data, _: given_up_of(data, where="s3://b/k"),
    "a kept record in a notification": lambda data, _: given_up_of(
        json.dumps({"Type": "Notification", "Message": text_of(data)}), where="queue#1"
    ),
    "a dashboard": lambda data, _: read_dashboard(text_of(data)),
    "prices": of_file(lambda folder: _prices(folder / "file.json")),
    "a template": of_file(lambda folder: read_templates(folder / "file.json")),
    "a seal": lambda data, _: seal_from_bytes(data),
    "a note of losses": lambda data, _: noted_losses({50_000_000: data}),
    "an Avro schema": lambda data, _: struct_of_avro(text_of(data)),
    "a pipeline's plan": lambda data, _: PipelinePlan.from_json(text_of(data)),
    "a back-fill's note": of_file(
        lambda folder: backfill.begun("none.json", stream="s", checkpoint=str(folder), now_ms=1),
        backfill.FILE,
    ),
    "an offset log": of_file(
        lambda folder: read_logs(LocalCheckpoint(folder), stream=""), "offsets/0"
    ),
}


@pytest.mark.parametrize("about", READERS)
@pytest.mark.parametrize("what", HOSTILE)
def test_what_others_wrote_is_read_or_refused_by_an_error_of_ours(about, what, tmp_path):
    with suppress(ShardfleetError):
        READERS[about](HOSTILE[what], tmp_path)


@pytest.mark.parametrize("what", HOSTILE)
def test_an_option_that_is_no_position_is_a_value_error(what):
    with suppress(ValueError):  # Which the options' own reader names.
        start_of(text_of(HOSTILE[what]))


@pytest.mark.parametrize("what", ["depth", "no JSON", "cut", "no UTF-8", "infinite", "no number"])
def test_an_error_tells_what_is_wrong_and_quotes_nothing(what):
    with pytest.raises(ValueError, match="it ") as found:
        read_json(HOSTILE[what])
    assert LEAK not in repr(found.value)
    assert not hasattr(found.value, "doc")
    assert found.value.__suppress_context__ or found.value.__context__ is None


class Endless:
    """A body without end; how many bytes were taken of it."""

    taken = 0

    def read(self, size):
        part = bytes(min(size, 65_536))
        self.taken += len(part)
        return part


def test_a_body_without_end_is_left_at_its_bound():
    body = Endless()
    with pytest.raises(ValueError, match=f"it has more than {BYTES_MOST} bytes"):
        read_bytes(body)
    assert body.taken <= BYTES_MOST + 65_536
    assert read_bytes(io.BytesIO(b"12345"), most=5) == b"12345"
    with pytest.raises(ValueError, match="it has more than 5 bytes"):
        read_bytes(io.BytesIO(b"123456"), most=5)
