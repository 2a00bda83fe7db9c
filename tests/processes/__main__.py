"""
Six processes over 24 shards, each killed, rolled or frozen in turn: `make processes`.

With `ARGS=--spill`, processes that join a stack (:mod:`tests.processes.spill`).

Figures go to a file; the exit code is 1 when a bound is not kept.
"""

import argparse
import json
import shutil
import signal
import time
from pathlib import Path

from shardfleet_local.aws.launcher import EmbeddedAws
from tests.processes import spill
from tests.processes.fleet import Processes, eventually

PROCESSES, SHARDS, RECORDS_PER_S, FAILOVER_MS = 6, 24, 200, 10_000
KINDS = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
FROZEN_S = 60
OTHERS_GAP_S, LOST_GAP_S, FIRST_S = 2.0, 3 * FAILOVER_MS / 1_000, 5.0


def is_shared(fleet):
    """Return whether each shard has a living process, and each of these has shards."""
    shares = fleet.shares()
    return None not in shares and len(shares) == PROCESSES


def disturb(fleet, number):
    """Kill, roll or freeze one process, the leader each third time; start another if it ends."""
    pids = sorted(pid for pid in fleet.shares() if pid is not None)  # A lease may be on its way.
    pid = fleet.leader() if number % 3 == 0 else pids[number % len(pids)]
    what, process = KINDS[number % len(KINDS)], fleet.process(pid)
    theirs, repeats, began = fleet.shards_of(pid), fleet.repeats(), time.time()
    process.send_signal(what)
    found, woken = {}, began
    if what is signal.SIGSTOP:
        time.sleep(FROZEN_S)
        woken = time.time()
        found["while_it_was_frozen"] = longest(fleet.gaps(began), theirs)
        process.send_signal(signal.SIGCONT)
    else:
        process.wait(120)
        fleet.start()
    eventually(lambda: is_shared(fleet), within_s=180)
    shared_s = time.time() - began
    time.sleep(2)
    if what is signal.SIGSTOP:
        found["repeats_when_it_woke"] = fleet.repeats_by(pid, woken)
    return {
        "what": what.name,
        "at": round(began, 1),
        "pid": pid,
        "is_leader": number % 3 == 0,
        "exit_code": process.poll(),
        # Of a frozen one since it woke: by then others read what was its.
        **longest(fleet.gaps(woken), theirs),
        **found,
        "repeats": fleet.repeats() - repeats,
        "shared_after_s": round(shared_s, 1),
        "feeder_s": fleet.feeder_s(began),
    }


def longest(gaps, theirs):
    """Return the longest gap of one process's shards and of the others, and whose it was."""
    found = {}
    for name, is_own in (("of_its_shards", True), ("of_others", False)):
        gap, shard = max((it, shard) for shard, it in gaps.items() if (shard in theirs) is is_own)
        found[f"gap_{name}_s"] = gap.seconds
        found[f"longest_{name}"] = {"shard": shard, "before": gap.before, "after": gap.after}
    return found


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
        woken_s = max(each["gap_of_others_s"], each["gap_of_its_shards_s"])
        if each["what"] == "SIGSTOP" and (each["repeats_when_it_woke"] or woken_s > OTHERS_GAP_S):
            yield f"{each}: it did harm when it woke"


def main():
    """Run, write the figures, and say what is not as it should be."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--spill", action="store_true", help="those that join a stack")
    parser.add_argument("--output", type=Path, default=None)
    arguments = parser.parse_args()
    name = "spill" if arguments.spill else "result"
    output = arguments.output or Path(f"build/processes/{name}.json")
    folder = output.parent / f"run-{name}"  # Logs and records of the last run stay there.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if arguments.spill:
        found = spill.run(folder.resolve())
        wrong = [*spill.complaints(found)]
    else:
        found = run(arguments.minutes, folder.resolve())
        wrong = [*complaints(found)]
    output.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1), *wrong, sep="\n")  # noqa: T201 - for a person
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
