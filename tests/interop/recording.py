"""
A history of the real KCL: two of its workers, a stranger beside them, a split, a merge, a kill.

No fleet takes part, so that what is written is the KCL's. The stranger is an owner that renews and
shows no row of metrics: what a KCL 3's leader makes of such a one is seen.
"""

import threading
from contextlib import ExitStack

from botocore.exceptions import BotoCoreError, ClientError

from shardfleet.adapters.dynamodb.items import item_from_fields
from shardfleet.domain.leases.changes import fields_of
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON
from tests.interop.history import LeaseHistory, text_of
from tests.interop.scene import APPLICATION, Scene
from tests.interop.watcher import LeaseWatcher

STRANGER, HELD = "stranger", 2
RENEW_S, MOST_S, REST_S = 3, 240, 60


class Stranger:
    """A context: owns the first leases of a table that it makes, and renews them."""

    def __init__(self, scene):
        self._table = scene.aws.client("dynamodb")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._held = []
        scene.make_table()
        for number, shard in enumerate(scene.open_shards()):
            ends = shard["HashKeyRange"]
            lease = Lease(
                lease_key=shard["ShardId"],
                checkpoint=AT_TRIM_HORIZON,
                lease_owner=STRANGER if number < HELD else None,
                hash_key_range=HashKeyRange(
                    int(ends["StartingHashKey"]), int(ends["EndingHashKey"])
                ),
            )
            self._table.put_item(TableName=APPLICATION, Item=item_from_fields(fields_of(lease)))
            self._held += [lease.lease_key] * (number < HELD)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(timeout=30)

    def _renew(self):
        while not self._over.wait(RENEW_S):
            for key in self._held:
                try:
                    self._table.update_item(
                        TableName=APPLICATION,
                        Key={"leaseKey": {"S": key}},
                        UpdateExpression="ADD leaseCounter :one",
                        ConditionExpression="leaseOwner = :me",
                        ExpressionAttributeValues={":one": {"N": "1"}, ":me": {"S": STRANGER}},
                    )
                except (BotoCoreError, ClientError):
                    continue


def record(version, folder, say):
    """Run the story with a version of the KCL; return its history as it is kept."""
    history = LeaseHistory(strangers=[STRANGER])

    def heard(at_ms, before, after):
        item = after or before
        if "leaseCounter" in item:
            history.write(at_ms, item["leaseKey"]["S"], before=before, after=after)
        elif after and "lut" in after and _is_newer(before, after):
            history.row(at_ms, after.get("wid", after.get("leaseKey"))["S"])

    with ExitStack() as stack:
        scene = stack.enter_context(Scene(folder, version, heard))
        rows = f"{APPLICATION}-WorkerMetricStats"
        stack.enter_context(LeaseWatcher(scene.aws, rows, heard))
        with Stranger(scene):
            for step in (_begins, _joins, _splits, _merges, _rests, _is_killed):
                say(f"  {step.__name__.strip('_').replace('_', ' ')}: {step(scene)} s")
        say(f"  stranger leaves: {_has(scene, STRANGER, 0)} s")
        scene.finish(REST_S)
    return text_of({"kcl": version.release, "stranger": STRANGER} | history.body())


def _is_newer(before, after):
    return before is None or before.get("lut") != after["lut"]


def _begins(scene):
    worker = scene.java.start()
    took = _until(scene, lambda: _held(scene, worker) == 6, "has what nobody has")
    scene.feed()
    return took


def _joins(scene):
    worker = scene.java.start()
    return _until(scene, lambda: _held(scene, worker) >= 3, "has its part")


def _splits(scene):
    owners = scene.owners()
    shard = next(s for s in scene.open_shards() if owners[s["ShardId"]] == "java-2")
    scene.split(shard)
    return _resharded(scene)


def _merges(scene):
    *_, one, other = scene.open_shards()
    scene.merge(one, other)
    return _resharded(scene)


def _rests(scene):
    scene.rest(REST_S)
    return REST_S


def _is_killed(scene):
    """Kill the second worker: the first is the leader of a KCL 3, and its lock outlives it."""
    scene.java.kill("java-2")
    return _has(scene, "java-2", 0)


def _resharded(scene):
    def is_done():
        owners = scene.owners()
        is_open = {shard["ShardId"] for shard in scene.open_shards()}
        return is_open == owners.keys() and all(owners.values())

    return _until(scene, is_done, "the children have owners")


def _has(scene, worker, number):
    return _until(scene, lambda: _held(scene, worker) == number, f"{worker} has {number}")


def _held(scene, worker):
    return list(scene.owners().values()).count(worker)


def _until(scene, condition, what):
    return scene.until(condition, MOST_S, what)
