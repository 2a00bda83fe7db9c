"""
Commands that run for minutes or start processes: what their work came to, as it was recorded.

Only the work is left out. What is printed of it comes from the command's own code.
"""

import json
import signal
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

from shardfleet.adapters import system
from shardfleet.domain.delivery.stops import StopNote
from shardfleet.engine.ports import HandlerResult
from shardfleet_local.aws import launcher, serving, standing
from shardfleet_local.aws.deploy import StackOutputs
from shardfleet_local.dashboard import gathering
from shardfleet_local.dashboard.server import DashboardServer
from shardfleet_local.own import own_run
from shardfleet_local.own.own_run import OwnRunResult, StoppedShard
from shardfleet_local.rig import run as demo_run
from shardfleet_local.rig.spark_part import MicroBatch, SparkOutcome
from shardfleet_ops.cli import dashboard, pipeline, redrive
from shardfleet_ops.cli.fleets import DeployedFleet
from shardfleet_ops.explain.fleet_view import failures
from shardfleet_ops.operate.given_up import FailedBucket, GivenUp
from shardfleet_spark.pipelines import running
from shardfleet_spark.pipelines.running import PipelineResult
from shardfleet_testkit import simulation
from shardfleet_testkit.checkers import Violation
from shardfleet_testkit.simulation import RunResult, campaign
from shardfleet_testkit.simulation.campaign import Totals
from tests.cli.clicks_fleet import FIRST, NUMBER, SPLIT, WORKERS
from tests.cli.conftest import CONFIG
from tests.domain.builders import a_failing_slot
from tests.local.rig.builders import BEGAN_MS, an_outcome
from tests.local.rig.test_chaos import OUTCOME, VERDICT

ORDERS = "".join(f'{{"who": "{"ab"[n % 2]}", "order": {n}}}\n' for n in range(7))
UP = (
    "The embedded AWS answers at http://127.0.0.1:4566",
    "export AWS_ENDPOINT_URL=http://127.0.0.1:4566",
    "export SHARDFLEET_STACK=Shop",
)


def stand_in(monkeypatch, state, folder):
    """Let each command find in its place what its work came to, at a fleet's state."""
    (folder / "orders.jsonl").write_text(ORDERS, "utf-8")
    (folder / "spoiled.jsonl").write_text(f"{ORDERS}[]\n{{\n", "utf-8")
    now = SimpleNamespace(now_ms=lambda: BEGAN_MS + 60_000)
    monkeypatch.setattr(system, "SystemClock", lambda: now)
    monkeypatch.setattr(
        demo_run,
        "run_rig",
        lambda o, say: (_chaos if o.plan.dice else _demo)(state, o.folder, say),
    )
    monkeypatch.setattr(own_run, "own_run", lambda _, say, printed: _own(state, say, printed))
    monkeypatch.setattr(simulation, "run_seed", lambda options: _seed(state, options.seed))
    monkeypatch.setattr(campaign, "campaign", lambda *_, **__: _campaign(state))
    monkeypatch.setattr(redrive, "_opened", lambda _, place: _given_up(state, place))
    monkeypatch.setattr(running, "run_pipeline", lambda *_: PipelineResult(batches=3, rows=24_000))
    monkeypatch.setattr(pipeline, "_session", lambda *_, **__: SimpleNamespace(stop=lambda: None))
    _stand_in_for_aws(monkeypatch, state)
    _stand_in_for_the_page(monkeypatch)


def _demo(state, folder, say):
    folder.mkdir(parents=True)
    healthy = state == "healthy"
    found = an_outcome(
        seconds=30, lose=() if healthy else (9, 12), rejects={"no JSON": (3, 17, 1_204)}
    )
    say("stopping everything")
    batches = [MicroBatch(began_ms=BEGAN_MS, took_ms=900, rows=600)] * 2
    return replace(
        found,
        spark=SparkOutcome(rows=1_200, keys=40, windows=80, fields=("click",), batches=batches)
        if healthy
        else SparkOutcome(wrong=["k3: 17 records came out, 18 went in"]),
    )


def _chaos(state, folder, say):
    folder.mkdir(parents=True)
    say("waiting for the fleet's first workers")
    say(
        "0:15  12,300 of 15,000 handled, 12,345 sent, 4 open shards, 3 workers, greatest lag "
        "0.4 s, 1,234 of 12,345 calls went wrong"
    )
    if state == "healthy":
        return OUTCOME
    return replace(OUTCOME, verdict=replace(VERDICT, lost=(3, 9)), unsettled={FIRST: "at 7"})


def _own(state, say, printed):
    say("feeding 7 records of orders.jsonl")
    printed("a: order 7")
    say("4 of 7 records handled")
    healthy = state == "healthy"
    note = StopNote(
        lease_key=FIRST,
        position=f"{NUMBER}:413",
        error="ValueError: order 7 cannot be shipped",
        attempts=5,
        worker_id=WORKERS[0],
        at_ms=0,
    )
    verdict = replace(VERDICT, records_in=7, records_handled_distinct=7, duplicates=0)
    if not healthy:
        verdict = replace(verdict, records_handled_distinct=4, lost=(5, 6, 7))
    return OwnRunResult(
        verdict=verdict,
        stops=[StoppedShard(note=note, line=line) for line in (5, None)]
        if state == "stopped"
        else [],
        failures=failures([a_failing_slot()], now_ms=1_000_000) if state == "failing" else [],
        took_ms=2_345,
    )


def _seed(state, seed):
    fails = Violation(2_000, "NothingLost", FIRST, "record 17 was never handled")
    return RunResult(
        seed=seed,
        violations=() if state == "healthy" else (fails,),
        virtual_ms=545_000,
        calls={"get_records": 19_707},
        faults={"kill": 1_070},
        commands={"rewind": 2},
        config=CONFIG,
        records=900,
        repetitions=12,
        reshards=10,
        turns=40,
        ended_hard=200,
        freezes=3,
        lines=(f"     1000 world split {FIRST}", f"     2000 s0001.1 checkpoint {FIRST}"),
        pairs=frozenset({("kill", "late")}),
    )


def _campaign(state):
    totals = Totals(elapsed_s=2.0)
    for seed in (1, 2):
        totals.add(_seed(state, seed), cpu_s=0.9)
    return totals


def _stand_in_for_aws(monkeypatch, state):
    class Aws:
        """An embedded AWS that is up."""

        endpoint_url = "http://127.0.0.1:4566"

        def __init__(self, **_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def environment(self):
            return {"AWS_ENDPOINT_URL": self.endpoint_url, "AWS_REGION": "eu-central-1"}

    def deploy(_assembly, name, _aws):
        signal.raise_signal(signal.SIGTERM)  # As if somebody ended it at once.
        outputs = {"StreamName": "clicks", "WorkerFunction": "Shop-Worker-1"}
        return StackOutputs(
            stack_name=name,
            template_sha256="0" * 64,
            outputs=outputs,
            resources={"F": "Shop-Worker-1"},
        )

    monkeypatch.setattr(launcher, "EmbeddedAws", Aws)
    monkeypatch.setattr(serving, "deploy", deploy)
    # At a fleet's other states there is one already.
    monkeypatch.setattr(standing, "lines_of", lambda _: [] if state == "healthy" else UP)


def _stand_in_for_the_page(monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    found = DeployedFleet(
        config=CONFIG, manager="manager", resources=[("AWS::CloudWatch::Dashboard", "clicks")]
    )
    monkeypatch.setattr(dashboard, "find_fleet", lambda _: found)
    monkeypatch.setattr(gathering.Gatherer, "dashboard", lambda _: SimpleNamespace(hours=3))
    monkeypatch.setattr(DashboardServer, "url", "http://127.0.0.1:8080/a1b2c3/")
    monkeypatch.setattr(DashboardServer, "wait", interrupted)


@asynccontextmanager
async def _given_up(state, place):
    """Three documents of two shards; of a failing handler the second one fails again."""
    stream = "arn:aws:kinesis:eu-central-1:111122223333:stream/clicks"
    numbers = [(FIRST, 0), (FIRST, 1), (SPLIT, 2)] if state != "empty" else []
    documents = [
        GivenUp(
            where=f"{place}1111/{shard}/2026/11/21/{NUMBER[:-1]}{n}-0-{NUMBER[:-1]}{n}-0.json",
            stream_arn=stream if state != "stopped" else f"{stream}-of-another",
            shard_id=shard,
            place=(int(NUMBER) + n, 0),
            through=(int(NUMBER) + n, 0),
            count=1 + n,
            first_ms=BEGAN_MS + 1_000 * n,
            last_ms=BEGAN_MS + 2_000 * n,
            payload=json.dumps({"Records": [{}] * (1 + n)}),
            location="",
        )
        for shard, n in numbers
    ]

    async def look():
        return documents

    async def take(document, *, within_s):
        return document

    async def nothing(_):
        return None

    async def handle(event):
        count = len(event["Records"])
        error = "ValueError (handler.py:7)" if (state, count) == ("failing", 2) else None
        return HandlerResult(done_count=0 if error else count, error=error)

    kept = SimpleNamespace(look=look, take=take, delete=nothing, leave=nothing)
    own = FailedBucket(bucket="failed", folder="shardfleet/failed/1111/")
    yield redrive._Opened(kept, handle, stream, own, 240)
