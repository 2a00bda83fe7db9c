"""The fleet as plain processes, on the embedded AWS: started, shared, killed, frozen, rolled."""

import contextlib
import signal
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.local.launcher.test_pushed_over_tls import inject
from tests.processes.fleet import FAILOVER_MS, Processes, eventually

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]
FIRST_RECORD_S = 30.0  # 5 s in an empty room: `make first-hour`; here others are at work.
TWO_WORKERS = """
import asyncio, os, sys, time
from shardfleet import Worker

def noting(path, until=""):
    def handle(batch):
        lines = [f"{time.time():.3f} {os.getpid()} {record.data.decode()}\\n" for record in batch]
        with open(path, "a") as file:
            file.write("".join(lines))
        while until and not os.path.exists(until):
            time.sleep(0.05)
    return handle

def worker(name, handle):
    options = {"failover_ms": 3_000, "handler_timeout_ms": 300_000}
    return Worker(stream=name, application=name, handler=handle, **options)

async def main(stuck, quick, stuck_file, quick_file, until):
    first, second = worker(stuck, noting(stuck_file, until)), worker(quick, noting(quick_file))
    async with first, second:
        await asyncio.gather(first.run(), second.run())

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def fleet(embedded_aws, tmp_path):
    with Processes(embedded_aws, tmp_path) as processes:
        yield processes


def settled(fleet, count):
    """
    Wait until so many processes share all shards evenly.

    While nothing moves a manager looks once a minute, and a handover waits for the next owner.
    """
    even = [fleet.shards // count] * count
    return eventually(
        lambda: sorted(fleet.shares().values()) == even and None not in fleet.shares(),
        within_s=150,
    )


def all_handled(fleet, *, within_s=60):
    fleet.stop_feeding()
    eventually(lambda: fleet.missing() == 0, within_s=within_s)


def test_one_command_reads_the_first_record_soon_and_leaves_in_order(fleet):
    for shard in range(4):
        fleet.send(shard)
    began = time.time()
    process = fleet.start()
    eventually(lambda: fleet.missing() == 0)
    first_s = min(at for at, *_ in fleet.records()) - began
    process.terminate()
    assert process.wait(60) == 0
    assert set(fleet.owners().values()) == {""}
    assert fleet.repeats() == 0
    assert first_s <= FIRST_RECORD_S


def test_two_processes_share_the_shards_and_one_that_is_told_to_end_repeats_nothing(fleet):
    first = fleet.start()
    fleet.feed(40)
    eventually(fleet.records)
    fleet.start()
    settled(fleet, 2)
    first.terminate()
    assert first.wait(60) == 0
    eventually(lambda: len(fleet.shares()) == 1 and None not in fleet.shares())
    all_handled(fleet)
    assert (fleet.missing(), fleet.repeats(), fleet.out_of_order()) == (0, 0, 0)


def test_what_is_pushed_is_handled_though_no_poll_succeeds_and_the_next_process_takes_over(
    fleet, embedded_aws
):
    described = fleet.kinesis.describe_stream_summary(StreamName=fleet.name)
    stream = described["StreamDescriptionSummary"]["StreamARN"]
    made = fleet.kinesis.register_stream_consumer(StreamARN=stream, ConsumerName="pushed")
    fleet.env["SHARDFLEET_CONSUMER_ARN"] = made["Consumer"]["ConsumerARN"]
    inject(embedded_aws, "ThrottleReads", fleet.name, DurationMs=3_600_000)
    for _ in range(2):
        fleet.send(*range(4))
        process = fleet.start()
        eventually(lambda: fleet.missing() == 0)
        fleet.send(*range(4))
        eventually(lambda: fleet.missing() == 0)
        process.terminate()
        assert process.wait(60) == 0
    assert fleet.repeats() == 0


def test_a_killed_manager_s_process_loses_nothing(fleet):
    fleet.feed(40)
    fleet.start(), fleet.start()
    settled(fleet, 2)
    time.sleep(FAILOVER_MS / 1_000)
    killed_at = time.time()
    fleet.process(fleet.leader()).kill()
    time.sleep(4 * FAILOVER_MS / 1_000)
    gaps = fleet.gaps_s(killed_at)
    all_handled(fleet)
    assert (fleet.missing(), fleet.out_of_order()) == (0, 0)
    assert max(gaps.values()) <= 3 * FAILOVER_MS / 1_000, gaps


def test_a_process_that_was_frozen_does_no_harm_when_it_wakes(fleet):
    fleet.feed(40)
    fleet.start(), fleet.start()
    settled(fleet, 2)
    frozen = fleet.process(fleet.leader())
    frozen.send_signal(signal.SIGSTOP)
    time.sleep(4 * FAILOVER_MS / 1_000)
    frozen.send_signal(signal.SIGCONT)
    settled(fleet, 2)
    all_handled(fleet)
    assert (fleet.missing(), fleet.out_of_order()) == (0, 0)
    assert frozen.poll() is None


def test_the_commands_find_a_fleet_of_processes_by_its_application(fleet):
    fleet.send(0)
    fleet.start()
    eventually(lambda: fleet.missing() == 0)
    for command in ("status", "explain", "pause --all --yes", "resume --all --yes"):
        done = fleet.shardfleet(*command.split(), "--application", fleet.name)
        assert done.returncode == 0, done.stderr + done.stdout
    assert f"{fleet.name}-s0001" in fleet.shardfleet("leases", "--application", fleet.name).stdout
    logs = fleet.shardfleet("logs", "--application", fleet.name)
    assert (logs.returncode, "processes run it" in logs.stderr) == (2, True)


def test_what_is_missing_is_said_and_nothing_is_made(fleet):
    told = fleet.shardfleet(*fleet.command("--check"))
    assert (told.returncode, told.stdout.split()) == (
        1,
        ["no", "table", fleet.name, "no", "table", f"{fleet.name}-fleet"],
    )
    refused = fleet.shardfleet(*fleet.command("--no-create"))
    assert (refused.returncode, f"{fleet.name}-fleet" in refused.stderr) == (2, True)
    wrong = fleet.shardfleet(*fleet.command("--failover", "1"))
    assert (wrong.returncode, "--failover: no such option" in wrong.stderr) == (2, True)
    assert fleet.name not in fleet.tables.list_tables()["TableNames"]


def test_several_processes_of_one_command_share_the_shards_and_end_together(fleet):
    fleet.send(0)
    command = fleet.start("--processes", "2")
    eventually(lambda: sorted(fleet.shares().values()) == [2, 2])
    command.terminate()
    assert command.wait(60) == 0
    assert set(fleet.owners().values()) == {""}


def test_a_worker_beside_a_web_server_in_one_program(fleet, monkeypatch):
    for shard in range(4):
        fleet.send(shard)
    service = fleet.run(ROOT / "examples/processes/service.py", fleet.name, fleet.name)

    def views():
        with contextlib.suppress(OSError), urlopen("http://127.0.0.1:8080") as answer:
            return int(answer.read())

    eventually(lambda: views() == 4)
    service.send_signal(signal.SIGINT)
    service.wait(60)
    assert set(fleet.owners().values()) == {""}


def counters(fleet):
    items = fleet.tables.scan(TableName=fleet.name)["Items"]
    return {item["leaseKey"]["S"]: int(item["leaseCounter"]["N"]) for item in items}


def test_two_workers_are_one_program_and_a_handler_that_blocks_stops_no_loop(
    fleet, embedded_aws, tmp_path
):
    other_folder, until = tmp_path / "other", tmp_path / "until"
    other_folder.mkdir()
    with Processes(embedded_aws, other_folder) as other:
        fleet.send(0)
        names = (fleet.name, other.name, fleet.handled, other.handled, until)
        program = fleet.run("-c", TWO_WORKERS, *map(str, names))
        eventually(lambda: fleet.missing() == 0)  # From now on its handler blocks.
        before = eventually(lambda: len(found := counters(fleet)) == 4 and found)
        owners = fleet.owners()
        # Its leases are renewed for longer than they would last else,
        eventually(lambda: all(counters(fleet)[key] >= n + 6 for key, n in before.items()))
        assert fleet.owners() == owners
        # its manager goes on, which makes leases for the children of a split,
        fleet.kinesis.split_shard(
            StreamName=fleet.name,
            ShardToSplit="shardId-000000000003",
            NewStartingHashKey=str(7 * 2**125),
        )
        eventually(lambda: len(fleet.owners()) == 6)
        # and the other stream is read.
        for shard in range(4):
            other.send(shard)
        eventually(lambda: other.missing() == 0)
        until.touch()
        program.send_signal(signal.SIGINT)
        program.wait(60)
        assert (fleet.repeats(), other.repeats()) == (0, 0)
        assert {*other.owners().values()} == {""}
