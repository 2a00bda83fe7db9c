"""`shardfleet position`: documents out of lease tables and into them, nothing unasked."""

import json
from contextlib import asynccontextmanager

import boto3
import pytest

from shardfleet.adapters.dynamodb.items import lease_from_item
from shardfleet.domain.stream.hash_ranges import HASH_KEY_MAX, HashKeyRange
from shardfleet.domain.stream.sequence import StreamIncarnation
from shardfleet.domain.stream.shards import Shard
from shardfleet_ops.cli import app as application
from shardfleet_ops.cli import position
from tests.cli.conftest import CONFIG
from tests.domain.builders import a_lease

HERE = StreamIncarnation(CONFIG.stream_arn, 1_000)
WHOLE = HashKeyRange(0, HASH_KEY_MAX)


class Stream:
    def __init__(self):
        self.found = HERE
        ended = {"hash_key_range": WHOLE, "ending_sequence_number": "99"}
        self.shards = [
            Shard(shard_id="shardId-000000000000", **ended),
            Shard(
                shard_id="shardId-000000000001",
                hash_key_range=WHOLE,
                parent_shard_id="shardId-000000000000",
            ),
        ]

    async def incarnation(self):
        return self.found

    async def list_shards(self):
        return self.shards


@pytest.fixture
def stream(monkeypatch):
    found = Stream()

    @asynccontextmanager
    async def opened(_name):
        yield found

    monkeypatch.setattr(position, "opened_stream", opened)
    return found


def run(capsys, *arguments):
    code = application.run(["position", *arguments])
    return code, capsys.readouterr()


def checkpoints():
    items = boto3.client("dynamodb").scan(TableName="leases")["Items"]
    return {each.lease_key: str(each.checkpoint) for each in map(lease_from_item, items)}


def document(tmp_path, **shards):
    path = tmp_path / "positions.json"
    found = {"format": "shardfleet.positions", "version": 1, "stream": HERE.stream_arn}
    found |= {"created_ms": HERE.created_ms, "origin": "a test", "at_ms": 1, "waiting": {}}
    path.write_text(json.dumps(found | {"shards": shards}))
    return str(path)


INTO = ("--application", "leases")


def test_an_applications_positions_are_written_as_a_document(fleet, stream, capsys, tmp_path):
    fleet.put_lease(a_lease("shardId-000000000000 at SHARD_END"))
    fleet.put_lease(a_lease("shardId-000000000001 at 7:3"))
    path = tmp_path / "out.json"

    code, said = run(capsys, "export", *INTO, "--stream", "clicks", "--output", str(path))
    found = json.loads(path.read_text())

    assert (code, said.out) == (0, "")
    assert said.err == "2 shards; application leases\n"
    assert found["shards"] == {"shardId-000000000000": "END", "shardId-000000000001": "AFTER:7:3"}
    assert (found["stream"], found["created_ms"]) == (HERE.stream_arn, 1_000)


def test_positions_are_written_as_a_querys_option_too(fleet, stream, capsys):
    fleet.put_lease(a_lease("shardId-000000000001 at 7:3 by worker-1"))

    code, said = run(capsys, "export", *INTO, "--stream", "clicks", "--option")

    assert code == 0
    assert json.loads(said.out) == {"shardId-000000000001": "AFTER:7:3", "default": "TRIM_HORIZON"}
    assert "shardId-000000000001: somebody still reads them" in said.err


def test_a_lease_that_says_no_position_and_a_table_without_a_stream_are_refused(
    fleet, stream, capsys
):
    fleet.put_lease(a_lease("shardId-000000000001 at LATEST"))

    code, said = run(capsys, "export", *INTO, "--stream", "clicks")
    assert (code, "nothing was ever checkpointed in shardId-000000000001" in said.err) == (2, True)
    code, said = run(capsys, "export", *INTO)
    assert (code, "needs --stream" in said.err) == (2, True)


def test_an_import_shows_what_it_would_write_and_writes_it_when_told_to(
    fleet, stream, capsys, tmp_path
):
    fleet.put_lease(a_lease("shardId-000000000000 at 5 counter 4"))
    file = document(
        tmp_path, **{"shardId-000000000000": "END", "shardId-000000000001": "AFTER:7:3"}
    )

    code, said = run(capsys, "import", file, *INTO)
    assert (code, checkpoints()) == (1, {"shardId-000000000000": "5"})
    assert "create" in said.out
    assert "Nothing was changed" in said.out
    code, said = run(capsys, "import", file, *INTO, "--dry-run", "--json")
    assert (code, json.loads(said.out)["applied"], checkpoints()) == (
        0,
        False,
        {"shardId-000000000000": "5"},
    )
    code, said = run(capsys, "import", file, *INTO, "--yes")
    assert (code, "2 leases written" in said.out) == (0, True)
    assert checkpoints() == {"shardId-000000000000": "SHARD_END", "shardId-000000000001": "7:3"}
    code, said = run(capsys, "import", file, *INTO, "--yes", "--json")
    assert [step["result"] for step in json.loads(said.out)["steps"]] == ["SAME", "SAME"]


@pytest.mark.parametrize(
    ("lease", "obstacle"),
    [
        (
            "shardId-000000000001 at 5 by worker-1",
            "worker-1 holds shardId-000000000001: pause or drain",
        ),
        ("shardId-000000000001 at 8", "at 8 already, past the position to import"),
    ],
)
def test_nothing_is_written_over_a_living_owner_or_backwards(
    fleet, stream, capsys, tmp_path, lease, obstacle
):
    fleet.put_lease(a_lease(lease))
    before = checkpoints()

    code, said = run(
        capsys,
        "import",
        document(tmp_path, **{"shardId-000000000001": "AFTER:7:0"}),
        *INTO,
        "--yes",
    )

    assert (code, obstacle in said.err) == (1, True)
    assert checkpoints() == before


def test_an_owner_that_does_not_renew_while_it_is_watched_is_gone(
    fleet, stream, capsys, tmp_path, monkeypatch
):
    fleet.put_lease(a_lease("shardId-000000000001 at 5 by worker-1"))
    monkeypatch.setattr(position, "_LOOK_EVERY_S", 0.01)
    file = document(tmp_path, **{"shardId-000000000001": "AFTER:7:0"})

    code, _ = run(capsys, "import", file, *INTO, "--yes", "--watch", "0.05")

    assert (code, checkpoints()) == (0, {"shardId-000000000001": "7"})


def test_positions_of_another_stream_are_refused(fleet, stream, capsys, tmp_path):
    stream.found = StreamIncarnation(HERE.stream_arn, 2_000)

    code, said = run(capsys, "import", document(tmp_path), *INTO, "--yes")

    assert (code, "another stream" in said.err) == (2, True)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_one_message(fleet, stream, capsys, tmp_path, content):
    path = tmp_path / "nofile"
    if content:
        path.write_bytes(content)

    code, said = run(capsys, "import", str(path), *INTO)
    assert code == 2
    assert said.err.startswith(f"shardfleet: {path}: ")
    assert "`shardfleet position export` wrote is expected" in said.err
