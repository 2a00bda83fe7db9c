"""
The Java KCL and a fleet in one lease table: ``python -m tests.interop``.

One side begins and has all eight shards; the other one joins while records flow, a third of them
aggregated. Then: who has how much, what moves in a quiet time, and what each side was given.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from shardfleet.adapters.dynamodb.leases import ensure_lease_table
from shardfleet.local.aws.deploy import deploy
from shardfleet.local.aws.launcher import EmbeddedAws
from shardfleet.local.demo.feed import FeedPace, feed_stream
from shardfleet.local.demo.fleet import FleetPlan, handler_of, synthesized
from shardfleet.local.demo.ledger import DemoLedger
from shardfleet.local.demo.source import click_stream
from tests.conformance.kcl import why_not
from tests.interop.checker import FLEET, JAVA, judge, moves, share
from tests.interop.java import JavaConsumer, deliveries
from tests.interop.watcher import LeaseWatcher

ORDERS = "java-first", "fleet-first"
SHARDS, RECORDS_PER_S = 8, 200
STREAM, APPLICATION = "clicks", "clicks-app"
BEGIN_MOST_S, DRAIN_MOST_S = 180, 120
# So many leases each side must have by then.
SHARE_LEAST = SHARDS // 4


class Scenario:
    """One run in one order."""

    def __init__(self, folder, order, *, settle_s, quiet_s):
        self._folder = folder
        self._order = order
        self._settle_s, self._quiet_s = settle_s, quiet_s
        self._ledger = DemoLedger(folder / "fleet.jsonl")
        self._ledger.path.touch()
        self._sent = []

    def run(self):
        """Run it and return its figures."""
        template = synthesized(self._folder / "cdk.out", FleetPlan(context=self._context()))
        environment = self._ledger.environment(handler_of(template))
        with ExitStack() as stack:
            aws = EmbeddedAws(enforce_iam=True, lambda_environment=environment)
            self._aws = stack.enter_context(aws)
            aws.client("kinesis").create_stream(StreamName=STREAM, ShardCount=SHARDS)
            aws.client("kinesis").get_waiter("stream_exists").wait(StreamName=STREAM)
            # As KCL 3 makes it, so that either side may begin.
            ensure_lease_table(aws.client("dynamodb"), APPLICATION)
            watcher = LeaseWatcher(aws.client("dynamodb"), APPLICATION)
            self._watcher = stack.enter_context(watcher)
            java = JavaConsumer(self._folder, aws, stream=STREAM, application=APPLICATION)
            sides = {
                "java": lambda: stack.enter_context(java),
                "fleet": lambda: deploy(template.parent, template.name.split(".")[0], aws),
            }
            first, second = self._order.removesuffix("-first"), None
            second = next(side for side in sides if side != first)
            sides[first]()
            self._until(lambda: all(self._owners()), BEGIN_MOST_S, f"{first} has all leases")
            feed = self._feeding()
            began_ms = _now_ms()
            sides[second]()
            time.sleep(max(0.0, began_ms / 1000 + self._settle_s - time.time()))
            settled_ms = _now_ms()
            time.sleep(self._quiet_s)
            quiet_ms = _now_ms()
            feed.join(timeout=DRAIN_MOST_S)
            self._until(self._is_drained, DRAIN_MOST_S, "all records are delivered", must=False)
            runs = java.runs
        return self._figures(java, settled_ms=settled_ms, quiet_ms=quiet_ms) | {
            "java_ran_to_the_end": runs
        }

    def _context(self):
        arn = f"arn:aws:kinesis:us-east-1:111122223333:stream/{STREAM}"
        return {
            "shardfleet:stream": arn,
            "shardfleet:lease_table": APPLICATION,
            "shardfleet:config": {"leases_per_worker": SHARDS // 2},
            "shardfleet:monitoring": False,
        }

    def _owners(self):
        found = self._watcher.owners()
        return [found.get(f"shardId-{number:012d}") for number in range(SHARDS)]

    def _feeding(self):
        """Feed for as long as the run is to last."""
        seconds = self._settle_s + self._quiet_s
        source = click_stream(seconds * RECORDS_PER_S, seed=1)
        feeding = feed_stream(
            source.records,
            self._aws,
            stream_arn=self._context()["shardfleet:stream"],
            pace=FeedPace(duration_ms=1000 * seconds),
            on_sent=self._sent.extend,
        )
        thread = threading.Thread(target=lambda: asyncio.run(feeding), daemon=True)
        thread.start()
        return thread

    def _deliveries(self):
        java = deliveries(self._folder / "java.jsonl", JAVA)
        return [*java, *deliveries(self._ledger.path, FLEET)]

    def _is_drained(self):
        fed = {(s.receipt.shard_id, *_position(s.receipt)) for s in self._sent}
        return not fed - {(d.shard, *p) for d in self._deliveries() for p in d.positions}

    def _until(self, condition, within_s, what, *, must=True):
        deadline = time.monotonic() + within_s
        while not condition():
            if self._watcher.failure:
                raise self._watcher.failure
            if time.monotonic() > deadline:
                if must:
                    raise TimeoutError(f"not within {within_s} s: {what}: {self._owners()}")
                return
            time.sleep(1)

    def _figures(self, java, *, settled_ms, quiet_ms):
        sent = [(s.key, s.receipt.shard_id, _position(s.receipt)) for s in self._sent]
        ours, history = {java.worker_id}, self._watcher.history
        found = judge(sent, self._deliveries(), history, java=ours)
        at = share(history, at_ms=settled_ms, java=ours)
        is_shared = all(at[side] >= SHARE_LEAST for side in (JAVA, FLEET))
        moved = moves(history, from_ms=settled_ms, to_ms=quiet_ms)
        return {
            "sent": found.sent,
            "aggregated": sum(s.receipt.aggregated for s in self._sent),
            "delivered": dict(found.delivered),
            "lost": found.lost,
            "out_of_order": found.out_of_order,
            "non_owner_deliveries": len(found.non_owner),
            "repeated": dict(found.repeated),
            "examples": found.examples + [repr(each)[:200] for each in found.non_owner[:3]],
            "leases_after_s": self._settle_s,
            "leases": {side: at[side] for side in (JAVA, FLEET)},
            "is_shared": is_shared,
            "moves_a_minute": round(60_000 * moved / max(1, quiet_ms - settled_ms), 2),
            "is_good": found.is_good and is_shared,
            "java_said": dict(java.logged().most_common()),
            "owners": {
                shard: [[(look.ended_ms - settled_ms) // 1000, look.owner, look.checkpoint_owner]
                        for look in looks]
                for shard, looks in sorted(history.items())
            },
        }  # fmt: skip


def _position(receipt):
    return int(receipt.sequence_number), receipt.sub_sequence_number


def _now_ms():
    return time.time_ns() // 1_000_000


def lines(order, found):
    """Say it for a person."""
    yield f"{order}: {'good' if found['is_good'] else 'NOT GOOD'}"
    yield f"  records      {found['sent']:,}, {found['aggregated']:,} of them aggregated"
    yield f"  delivered    Java {found['delivered'][JAVA]:,}, fleet {found['delivered'][FLEET]:,}"
    yield (
        f"  lost {found['lost']}, out of order {found['out_of_order']}, by a non-owner "
        f"{found['non_owner_deliveries']}, repeated {found['repeated'] or 0}"
    )
    leases = found["leases"]
    yield (
        f"  leases after {found['leases_after_s']} s: Java {leases[JAVA]}, fleet {leases[FLEET]}"
        f"; then {found['moves_a_minute']} moves a minute"
    )
    yield from (f"    {line}" for line in found["examples"])
    yield from (f"  Java, {times} times: {text}" for text, times in found["java_said"].items())


def main(arguments):
    """Run each order; return 1 if one is not good."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop")
    parser.add_argument("--order", dest="orders", action="append", choices=ORDERS)
    parser.add_argument("--settle-s", type=int, default=180, help="until leases are counted")
    parser.add_argument("--quiet-s", type=int, default=120, help="in which moves are counted")
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    given = parser.parse_args(arguments)
    if reason := why_not():
        parser.exit(1, f"{reason}\n")
    figures = {}
    for order in given.orders or ORDERS:
        with tempfile.TemporaryDirectory(prefix="shardfleet-interop-") as folder:
            scenario = Scenario(Path(folder), order, settle_s=given.settle_s, quiet_s=given.quiet_s)
            figures[order] = found = scenario.run()
        sys.stdout.write("\n".join([*lines(order, found), ""]))
        sys.stdout.flush()
    if given.output is not None:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    return not all(found["is_good"] for found in figures.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
