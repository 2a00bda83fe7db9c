"""
Six processes over 24 shards, each killed or rolled in turn: `make processes`.

Figures go to a file; the exit code is 1 when a bound is not kept.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from shardfleet_local.aws.launcher import EmbeddedAws
from tests.processes.fleet import Processes, eventually

PROCESSES, SHARDS, RECORDS_PER_S, FAILOVER_MS = 6, 24, 200, 10_000
OTHERS_GAP_S, LOST_GAP_S, FIRST_S = 2.0, 3 * FAILOVER_MS / 1_000, 5.0


def is_shared(fleet):
    """Return whether each shard has a living process, and each of these has shards."""
    shares = fleet.shares()
    return None not in shares and len(shares) == PROCESSES


def disturb(fleet, number):
    """Kill or roll one process, the leader each third time, and start another one for it."""
    pids = sorted(pid for pid in fleet.shares() if pid is not None)  # A lease may be on its way.
    pid = fleet.leader() if number % 3 == 0 else pids[number % len(pids)]
    owners, hosts = fleet.owners(), fleet.hosts()
    theirs = {int(key[-3:]) for key, owner in owners.items() if hosts.get(owner) == pid}
    is_kill, repeats, began = number % 2 == 0, fleet.repeats(), time.time()
    process = fleet.process(pid)
    process.kill() if is_kill else process.terminate()
    code = process.wait(120)
    fleet.start()
    eventually(lambda: is_shared(fleet), within_s=180)
    time.sleep(2)
    gaps = fleet.gaps_s(began)
    return {
        "what": "SIGKILL" if is_kill else "SIGTERM",
        "exit_code": code,
        "gap_of_its_shards_s": max((gaps[shard] for shard in theirs), default=0),
        "gap_of_others_s": max(gap for shard, gap in gaps.items() if shard not in theirs),
        "repeats": fleet.repeats() - repeats,
        "shared_after_s": round(time.time() - began - 2, 1),
    }


def run(minutes, folder):
    with (
        EmbeddedAws() as aws,
        Processes(aws, folder, shards=SHARDS, failover_ms=FAILOVER_MS) as fleet,
    ):
        fleet.feed(RECORDS_PER_S)
        began = time.time()
        fleet.start()
        eventually(fleet.records)
        first_s = fleet.records()[0][0] - began
        for _ in range(PROCESSES - 1):
            fleet.start()
        eventually(lambda: is_shared(fleet), within_s=180)
        end, done = time.monotonic() + 60 * minutes, []
        while time.monotonic() < end:
            time.sleep(5)
            done.append(disturb(fleet, len(done)))
        fleet.stop_feeding()
        eventually(lambda: not fleet.missing(), within_s=120)
        return {
            "minutes": minutes,
            "records": sum(fleet.sent.values()),
            "first_record_s": round(first_s, 2),
            "lost": fleet.missing(),
            "repeats": fleet.repeats(),
            "out_of_order": fleet.out_of_order(),
            "disturbed": done,
        }


def complaints(found):
    yield from (f"{name}: {found[name]}" for name in ("lost", "out_of_order") if found[name])
    if found["first_record_s"] > FIRST_S:
        yield f"first record after {found['first_record_s']} s"
    for each in found["disturbed"]:
        if each["what"] == "SIGTERM" and (each["repeats"] or each["exit_code"]):
            yield f"{each}: SIGTERM is to repeat nothing"
        is_late = each["gap_of_others_s"] > OTHERS_GAP_S or each["gap_of_its_shards_s"] > LOST_GAP_S
        if each["what"] == "SIGKILL" and is_late:
            yield f"{each}: too long a gap"


def main():
    """Run, write the figures, and say what is not as it should be."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--output", type=Path, default=Path("build/processes/result.json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(arguments.minutes, folder)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(found, indent=1) + "\n")
    wrong = [*complaints(found)]
    print(json.dumps(found, indent=1), *wrong, sep="\n")  # noqa: T201 - for a person
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
