"""
Operations of our own over HTTP: faults and metrics, for tests, the demo and the launcher.

They are called like any operation, with the header `X-Amz-Target: ShardfleetLocal.<name>`, a JSON
body, and the account in the signature (or none: account 000000000000, region us-east-1):

    Faults   {"Action": "Inject", "Fault": {"Kind": "ThrottleReads", "StreamName": "clicks",
              "ShardId": "shardId-000000000000", "DurationMs": 60000}}
             {"Action": "List"}   {"Action": "Clear"}
             {"Action": "Trim", "StreamName": "clicks", "ShardId": "shardId-000000000000"}
             Each answers {"Active": [the faults in force]}. Kinds and fields: faults.py. Trim makes
             all records now in the shard too old, as if retention had passed; a closed shard is
             listed no more.
    Metrics  {} -> {"Namespace": "AWS/Kinesis", "MetricData": [...]}, shaped like PutMetricData;
             each sample is handed out once.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from shardfleet_local.kinesis.engine import KinesisEngine
from shardfleet_local.kinesis.errors import validation
from shardfleet_local.kinesis.metrics import sample_description
from shardfleet_local.kinesis.requests import Request, choice, name, structure

ADMIN_TARGET: Final = "ShardfleetLocal"
_ACTIONS: Final = ("Inject", "List", "Clear", "Trim")


def faults(engine: KinesisEngine, request: Request) -> dict[str, Any]:
    """Inject, list or clear faults, or trim a shard."""
    match choice(request, "Action", allowed=_ACTIONS):
        case "Inject":
            fault = structure(request, "Fault")
            if fault is None:
                raise validation("Inject needs a Fault.")  # ours
            engine.faults.inject(fault)
        case "Clear":
            engine.faults.clear()
        case "Trim":
            engine.trim(name(request, "StreamName"), name(request, "ShardId"))
        case _:
            pass
    return {"Active": engine.faults.in_force()}


def metrics(engine: KinesisEngine, _request: Request) -> dict[str, Any]:
    """Hand out the samples gathered since the last call."""
    samples = [sample_description(sample) for sample in engine.drain_metrics()]
    return {"Namespace": "AWS/Kinesis", "MetricData": samples}


ADMIN_OPERATIONS: Final[Mapping[str, Callable[[KinesisEngine, Request], dict[str, Any]]]] = {
    "Faults": faults,
    "Metrics": metrics,
}
