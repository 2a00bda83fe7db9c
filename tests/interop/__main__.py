"""
The Java KCL and a fleet in one lease table: ``python -m tests.interop``.

For each version of the KCL one run, in which one side joins the other, shards split and merge, and
either side is drained or killed, while records flow, a third of them aggregated.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.interop import story as steps_there_are
from tests.interop.allowed import unexpected
from tests.interop.checker import FLEET, JAVA, begins_ms, judge
from tests.interop.processes import ProcessScene
from tests.interop.recording import record
from tests.interop.scene import Disappointed, Scene
from tests.interop.story import STORIES, quiet
from tests.interop.versions import VERSIONS

DRAIN_MOST_S, EXAMPLES = 120, 8
# Of a lease that the other side had, where records are pushed: it may have subscribed just before.
BEGINS_MOST_MS = 6_000


def run(name, folder, given):
    """Run one version's story and return its figures."""
    version, say = VERSIONS[name], partial(_say, name)
    story = [getattr(steps_there_are, each) for each in given.steps] or STORIES[name]
    steps, faults = {}, []
    with (ProcessScene if version.processes else Scene)(folder, version) as scene:
        for step in story:
            if step is quiet and not given.quiet_s:
                continue
            deed = partial(quiet, seconds=given.quiet_s) if step is quiet else step
            title = step.__name__ if step.__name__ not in steps else f"{step.__name__} again"
            began = time.monotonic()
            try:
                found = deed(scene)
            except Disappointed as error:
                faults.append(f"{title}: {error}")
                break
            steps[title] = {**found, "took_s": round(time.monotonic() - began)}
            say(f"  {title.replace('_', ' ')}: {_told(steps[title])}")
        scene.finish(DRAIN_MOST_S)
        died = scene.java.died
        scene.stop_java()
        seen, aggregated, logged = scene.run(), scene.aggregated, scene.java.logged()
    (folder / "owners.json").write_text(json.dumps(seen.history), "utf-8")
    judged, slowest_ms = judge(seen), max(begins_ms(seen, FLEET), default=0)
    if version.consumers and slowest_ms > BEGINS_MOST_MS:
        faults.append(f"the fleet was given records {slowest_ms} ms after it got a lease")
    faults += [f"ended by itself: {each}" for each in died]
    faults += [*judged.faults, *unexpected(logged)]
    return {
        "kcl": version.release,
        "steps": steps,
        "sent": judged.sent,
        "aggregated": aggregated,
        "delivered": dict(judged.delivered),
        "lost": judged.lost,
        "out_of_order": judged.out_of_order,
        "non_owner_deliveries": len(judged.non_owner),
        "robbed": len(judged.robbed),
        "expired": len(judged.expired),
        "late_ms": seen.late_ms,
        "fleet_begins_ms": slowest_ms,
        "repeated": dict(judged.repeated),
        "java_said": dict(logged.most_common()),
        "faults": faults,
        "is_good": not faults,
    }


def _told(figures):
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items())


def lines(found):
    """Say it for a person."""
    yield f"{found['kcl']}: {'good' if found['is_good'] else 'NOT GOOD'} in {found['took_s']} s"
    yield f"  records      {found['sent']:,}, {found['aggregated']:,} of them aggregated"
    yield f"  delivered    Java {found['delivered'][JAVA]:,}, fleet {found['delivered'][FLEET]:,}"
    yield (
        f"  lost {found['lost']}, out of order {found['out_of_order']}, by a non-owner "
        f"{found['non_owner_deliveries']}, robbed {found['robbed']}, expired {found['expired']}, "
        f"repeated {found['repeated'] or 0}"
    )
    yield f"  records after at most {found['fleet_begins_ms']} ms, where the fleet got a lease"
    faults = found["faults"]
    yield from (f"  FAULT {fault:.600}" for fault in faults[:EXAMPLES])
    if len(faults) > EXAMPLES:
        yield f"  and {len(faults) - EXAMPLES} more"


def main(arguments):
    """Run each version, some of them at once; return 1 if one is not good."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop")
    parser.add_argument("--kcl", dest="versions", action="append", choices=STORIES)
    parser.add_argument(
        "--quiet-s",
        type=int,
        default=0,
        help="so long, after three minutes, moves are counted as well",
    )
    parser.add_argument(
        "--steps",
        type=lambda text: text.split(","),
        default=[],
        help="of one version: these steps alone, by commas",
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many versions at once")
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    parser.add_argument("--keep", type=Path, help="a new folder where ledgers and logs are left")
    parser.add_argument(
        "--history", type=Path, help="record what workers of one version do to leases, in this file"
    )
    given = parser.parse_args(arguments)  # fmt: skip
    # A shell's background job ignores it, and so would the commands that are to be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    versions = given.versions or [name for name in STORIES if not VERSIONS[name].is_long]
    with tempfile.TemporaryDirectory(prefix="shardfleet-interop-") as made:
        folder = given.keep or Path(made)
        folder.mkdir(exist_ok=given.keep is None)
        if len(versions) == 1:
            figures = {versions[0]: one(versions[0], folder, given)}
        else:
            # Each is a process: what one holds of threads and folders is no other's.
            with ThreadPoolExecutor(given.jobs) as pool:
                run_one = partial(apart, folder=folder, quiet_s=given.quiet_s)
                figures = dict(zip(versions, pool.map(run_one, versions), strict=True))
    if given.output is not None and given.history is None:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    return not all(found["is_good"] for found in figures.values())


def one(name, folder, given):
    """Run one version here, or say why it cannot be."""
    version = VERSIONS[name]
    if reason := version.why_not():
        _say(name, f"skipped: {reason}")
        # The wheel is asked for by make; Maven Central may be out of reach.
        return {"skipped": reason, "is_good": name != "3.1"}
    begun = time.monotonic()
    (folder / name).mkdir()
    if given.history:
        given.history.write_text(record(version, folder / name, partial(_say, name)), "utf-8")
        return {"is_good": True}
    found = run(name, folder / name, given)
    found["took_s"] = round(time.monotonic() - begun)
    for line in lines(found):
        _say(name, line)
    return found


def apart(name, *, folder, quiet_s):
    """Run one version in a process of its own; return its figures."""
    output = folder / f"{name}.json"
    command = [sys.executable, "-m", "tests.interop", "--kcl", name, "--quiet-s", str(quiet_s),
               "--keep", str(folder / f"{name}-run"), "--output", str(output)]  # fmt: skip
    subprocess.run(command, check=False)
    if not output.exists():
        return {"is_good": False, "faults": ["its process ended without a word"]}
    return json.loads(output.read_text("utf-8"))[name]


def _say(name, text):
    sys.stdout.write(f"KCL {name}  {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
