"""A deployed worker whose pages are decoded by a process of their own, which is killed."""

import base64
import os
import signal
import time
from pathlib import Path

import pytest

from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from tests.end_to_end.cloud import deployed, json_lines, wait_until

pytestmark = pytest.mark.processes
PUTS, USERS = 40, 100


def decoders_of(fleet):
    """Return the ids of the decoding processes of the fleet's workers."""
    name = fleet.outputs["WorkerFunction"]
    workers = {each.pid for each in fleet.aws.worker_processes(name)}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if b"shardfleet.adapters.decode.server" in words and parent in workers:
            found.append(int(folder.name))
    return found


def runs(pid):
    """Tell whether a process runs; one that has ended may wait to be taken leave of."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_killed_decoding_process_loses_no_record_and_no_order(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    with deployed(
        tmp_path,
        handler="ledger",
        function="ledger:handler",
        environment={"LEDGER": str(ledger)},
        config={"decode_processes": 1},
    ) as fleet:
        kinesis, killed = fleet.client("kinesis"), set()
        for n in range(PUTS):
            users = [
                OutgoingRecord(f"user-{m}", f"{n}-{m}-{'x' * 1_000}".encode()) for m in range(USERS)
            ]
            kinesis.put_record(
                StreamName=fleet.outputs["StreamName"],
                PartitionKey="any",
                Data=aggregate(users, max_bytes=1 << 20),
            )
            time.sleep(0.5)
            if n % 6 == 5 and len(killed) < 3:
                for pid in decoders_of(fleet):
                    killed.add(pid)
                    os.kill(pid, signal.SIGKILL)
        expected = [f"{n}-{m}" for n in range(PUTS) for m in range(USERS)]

        def handled():
            texts = (
                base64.b64decode(data).decode()
                for line in json_lines(ledger)
                for data in line["records"]
            )
            return [text.rpartition("-")[0] for text in texts]

        wait_until(
            lambda: len(handled()) >= len(expected),
            what="every record handled",
            within_s=120,
            fleet=fleet,
        )
        assert handled() == expected
        assert killed, "a process decoded, and was killed"
        pids = decoders_of(fleet)
    wait_until(lambda: not any(map(runs, pids)), what="they end with their workers", within_s=20)
