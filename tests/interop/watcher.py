"""Who owned what when: every change of an owner in a lease table, looked for all the time."""

import threading
import time

from botocore.exceptions import BotoCoreError, ClientError

from tests.interop.checker import Look

EVERY_S = 0.2


class LeaseWatcher:
    """A context within which a table is watched, from when it exists."""

    def __init__(self, dynamodb, table):
        self.history = {}
        self.failure = None
        self._dynamodb = dynamodb
        self._table = table
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(timeout=60)

    def owners(self):
        """Return unfinished shard to effective owner, as last seen."""
        last = {shard: looks[-1] for shard, looks in list(self.history.items())}
        return {shard: look.effective for shard, look in last.items() if not look.is_finished}

    def _watch(self):
        while not self._over.wait(EVERY_S):
            began_ms = _now_ms()
            try:
                items = self._dynamodb.scan(TableName=self._table, ConsistentRead=True)["Items"]
            except self._dynamodb.exceptions.ResourceNotFoundException:
                continue
            except (BotoCoreError, ClientError) as error:
                self.failure = error
                return
            for item in items:
                if "leaseCounter" in item:
                    self._note(item, began_ms, _now_ms())

    def _note(self, item, began_ms, ended_ms):
        owners = [item.get(name, {}).get("S") for name in ("leaseOwner", "checkpointOwner")]
        look = Look(began_ms, ended_ms, *owners, item["checkpoint"]["S"] == "SHARD_END")
        looks = self.history.setdefault(item["leaseKey"]["S"], [])
        if not looks or looks[-1][2:] != look[2:]:
            looks.append(look)


def _now_ms():
    return time.time_ns() // 1_000_000
