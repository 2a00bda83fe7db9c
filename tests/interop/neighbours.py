"""
A Java multi-stream application in a fleet's lease table: ``python -m tests.interop.neighbours``.

The KCL has its leases, of two streams of which one is resharded; then the fleet comes, and refuses
the table. The KCL runs on, and is killed, so that its leases pass for free. Its rows are taken away
and put back once the fleet has begun: with leases of one stream in its table the KCL itself does
not start (``streamIdentifier is marked non-null but is null``). Every write to the table is looked
at: of the KCL's leases the fleet may not make one, and as long as it refuses none at all.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

from tests.interop.java import JavaConsumer
from tests.interop.scene import APPLICATION, Scene
from tests.interop.scene import SHARDS as FLEET_SHARDS
from tests.interop.story import BEGIN_MOST_S
from tests.interop.versions import VERSIONS

ACCOUNT, STREAMS, SHARDS, RECORDS = "111122223333", ("orders", "payments"), 2, 40
TOLD_EACH_S, SETTLE_S, DRAIN_MOST_S, JAVA_BEGINS_S = 30, 5, 120, 400
RUNS, REFUSES, BEGINS, BESIDE = "Java runs", "Java is killed", "its rows go and come", "beside"
# Whose lease, and by the owner that it has then who may have written it.
_FORBIDDEN = {
    (RUNS, "Java's", "not Java"),
    *((REFUSES, "Java's", by) for by in ("Java", "not Java")),
    *((BESIDE, "Java's", by) for by in ("Java", "not Java")),
    *((phase, "the fleet's", by) for phase in (RUNS, REFUSES) for by in ("Java", "not Java")),
}


class Neighbours:
    """
    What is written to a lease table.

    Attributes:
        phase: what is going on.
        writes: phase, whose lease and whose write it may have been to how often.
        rows: key of a lease of the KCL to the item as it is.

    """

    def __init__(self):
        self.phase = RUNS
        self.writes = Counter()
        self.rows = {}

    def heard(self, _at_ms, before, after):
        item = after or before
        if "leaseCounter" not in item:
            return
        key = item["leaseKey"]["S"]
        owners = {
            (after or {}).get(each, {}).get("S") for each in ("leaseOwner", "checkpointOwner")
        }
        strange = {each for each in owners if each and not each.startswith("java-")}
        whose = "Java's" if ":" in key else "the fleet's"
        # The KCL cleans up after itself: its finished leases, after five minutes.
        is_cleaned = after is None and before.get("checkpoint") == {"S": "SHARD_END"}
        is_odd = strange or (after is None and not (is_cleaned and self.phase == RUNS))
        self.writes[self.phase, whose, "not Java" if is_odd else "Java"] += 1
        if ":" in key:
            self.rows[key] = after


def identifiers(scene):
    """Make the streams, and return them as a multi-stream application names them."""
    found = []
    for name in STREAMS:
        scene.kinesis.create_stream(StreamName=name, ShardCount=SHARDS)
        scene.kinesis.get_waiter("stream_exists").wait(StreamName=name)
        answer = scene.kinesis.describe_stream_summary(StreamName=name)
        made = answer["StreamDescriptionSummary"]["StreamCreationTimestamp"]
        found.append(f"{ACCOUNT}:{name}:{int(made.timestamp())}")
    return ",".join(found)


def feed(scene):
    for name in STREAMS:
        records = [{"Data": b"x", "PartitionKey": str(n)} for n in range(RECORDS)]
        scene.kinesis.put_records(StreamName=name, Records=records)


def reshard(scene):
    scene.kinesis.update_shard_count(
        StreamName=STREAMS[0], TargetShardCount=2 * SHARDS, ScalingType="UNIFORM_SCALING"
    )
    scene.kinesis.get_waiter("stream_exists").wait(StreamName=STREAMS[0])


def run(folder, given):
    """Run it and return the figures."""
    seen = Neighbours()
    say = partial(_say, time.monotonic(), seen)
    with Scene(folder, VERSIONS[given.kcl], seen.heard) as scene:
        java_said = _java_runs(scene, folder / "several", given, seen=seen, say=say)
        _rest(scene, SETTLE_S, say)  # What was on its way is told.
        seen.phase, before = REFUSES, _leases(scene)
        _rest(scene, given.refused_s, say)
        same = _leases(scene) == before
        seen.phase = BEGINS
        _go_and_come(scene, before)
        _rest(scene, SETTLE_S, say)
        seen.phase = BESIDE
        _rest(scene, given.stopped_s, say)
        held, rows = len(_held(scene)), {k: i for k, i in _leases(scene).items() if ":" in k}
        scene.finish(DRAIN_MOST_S)
        judged = scene.run()
    delivered = {position for each in judged.deliveries for position in each.positions}
    bad = [each for each in seen.writes if each in _FORBIDDEN]
    return {
        "leases_of_java": {key: _plain(item) for key, item in sorted(before.items())},
        "writes": {", ".join(each): n for each, n in sorted(seen.writes.items())},
        "same_while_refused": same,
        "changed_beside_a_fleet": sorted(k for k, item in before.items() if rows.get(k) != item),
        "fleet_holds": held,
        "fed": len(judged.sent),
        "lost": len({position for _, _, position in judged.sent} - delivered),
        "java_said": java_said,
        "is_good": same and rows == before and not bad and len(before) >= len(STREAMS) * SHARDS,
    }


def _java_runs(scene, folder, given, *, seen, say):
    """Let Java begin, the fleet come and refuse, and Java be killed; return what Java said."""
    folder.mkdir()
    java = JavaConsumer(
        folder,
        scene.aws,
        stream=identifiers(scene),
        application=APPLICATION,
        jars=VERSIONS[given.kcl].jars,
    )
    with java:
        java.start()
        feed(scene)
        wanted = len(STREAMS) * SHARDS
        scene.until(lambda: len(_owned(seen)) >= wanted, JAVA_BEGINS_S, "Java has its own")
        reshard(scene)
        feed(scene)
        scene.deploy_fleet()
        scene.feed()
        _rest(scene, given.running_s, say)
        return dict(java.logged().most_common(8))


def _go_and_come(scene, rows):
    """Take Java's rows away, as a person does, and put them back once the fleet has begun."""
    client = scene.aws.client("dynamodb")
    for key in rows:
        client.delete_item(TableName=APPLICATION, Key={"leaseKey": {"S": key}})
    scene.until(lambda: len(_held(scene)) == FLEET_SHARDS, BEGIN_MOST_S, "the fleet begins")
    for item in rows.values():
        client.put_item(TableName=APPLICATION, Item=item)


def _owned(seen):
    return [key for key, item in list(seen.rows.items()) if item and "leaseOwner" in item]


def _leases(scene):
    items = scene.aws.client("dynamodb").scan(TableName=APPLICATION, ConsistentRead=True)["Items"]
    return {item["leaseKey"]["S"]: item for item in items if "leaseCounter" in item}


def _held(scene):
    return [k for k, item in _leases(scene).items() if ":" not in k and "leaseOwner" in item]


def _plain(item):
    return {name: next(iter(value.values())) for name, value in item.items()}


def _rest(scene, seconds, say):
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        scene.rest(min(TOLD_EACH_S, left))
        say()


def _say(began, seen):
    writes = {", ".join(each): n for each, n in sorted(seen.writes.items())}
    sys.stdout.write(f"{time.monotonic() - began:.0f} s, {seen.phase}: {writes}\n")
    sys.stdout.flush()


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.interop.neighbours")
    parser.add_argument(
        "--kcl", choices=[n for n, v in VERSIONS.items() if not v.is_long], default="3.1"
    )
    parser.add_argument("--running-s", type=int, default=300)
    parser.add_argument("--refused-s", type=int, default=60)
    parser.add_argument("--stopped-s", type=int, default=600)
    parser.add_argument("--keep", type=Path, help="a new folder where ledgers and logs are left")
    given = parser.parse_args(arguments)
    if reason := VERSIONS[given.kcl].why_not():
        sys.stdout.write(f"skipped: {reason}\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="shardfleet-neighbours-") as made:
        folder = given.keep or Path(made)
        folder.mkdir(exist_ok=given.keep is None)
        figures = run(folder, given)
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    return not figures["is_good"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
