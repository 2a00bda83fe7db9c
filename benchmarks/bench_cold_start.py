"""
How long does a fresh process take until it can read a stream?

Ours: everything that a worker needs for GetRecords (botocore's session and client for credentials
and endpoint, our wire and decoder), and for comparison the whole entry point of the worker. The
peer is `boto3.client("kinesis")`. Byte code is cached in the first contest, as a layer with byte
code has it; in the second it is not, as a read-only layer without. The third makes two clients by
an SDK that has the data of the fleet's services only (`sdk_services`), against the whole one. CPU
time of the fresh processes, which on a machine of their own is their wall time.

The fourth is the whole of it, up to the first answer: the worker's entry point with all that reads
streams and tables, against a function that imports boto3 and makes clients of Kinesis and DynamoDB;
both then read an empty page over TLS. How many modules each has loaded by then, and how much memory
it has, is told beside it. That a turn's other calls before the first record need no more of the SDK
is tested (tests/adapters/test_plain_environment.py).

    python benchmarks/bench_cold_start.py [--only cold_start] [--rounds 15] [--folder DIR]
"""

from __future__ import annotations

import compileall
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import side_by_side
import tls_server
from side_by_side import Contest, Figures

ENVIRONMENT = {
    # What keeps byte code from being written would make of each start one without.
    **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
OURS = """
import shardfleet.adapters.http.connections, shardfleet.adapters.http.sigv4
import msgspec, pybase64, ssl
ssl.create_default_context()
"""
WORKER = "import shardfleet.runtime.entry_points"
THEIRS = "import boto3; boto3.client('kinesis')"
READY_WORKER = """
import os
from shardfleet.config import FleetConfig
from shardfleet.runtime import bootstrap, entry_points
arn = "arn:aws:kinesis:us-east-1:000000000000:stream/orders"
fleet = FleetConfig(
    fleet="bench", stream_arn=arn, lease_table="leases", state_table="state", handler="m:f"
)
sandbox = bootstrap.open_sandbox(os.environ | fleet.to_env())
threads = bootstrap.TurnThreads(sandbox.config)
bootstrap.lease_store(sandbox, threads), bootstrap.stream(sandbox, threads)
bootstrap.state_store(sandbox, threads)
sandbox.clients.wire_to(arn)().get_records("empty", limit=1)
"""
READY_FUNCTION = """
import boto3
arn = "arn:aws:kinesis:us-east-1:000000000000:stream/orders"
stream, tables = boto3.client("kinesis"), boto3.client("dynamodb")
stream.get_records(StreamARN=arn, ShardIterator="empty", Limit=1)
"""
EMPTY = b'{"Records":[],"NextShardIterator":"empty","MillisBehindLatest":0}'
SIZE = """
import resource, sys
print(len(sys.modules), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
CLIENTS = """
import botocore.session
sdk = botocore.session.get_session()
for service in ("kinesis", "dynamodb"):
    sdk.create_client(service)
"""
PRUNING = Path(__file__).parent.parent / "cdk" / "shardfleet_cdk" / "sdk_data.py"


def start(
    program: str, *, byte_code: bool = True, more: Mapping[str, str] = MappingProxyType({})
) -> int:
    """Run a program in a fresh process; without byte code nothing cached is read or written."""
    given = [] if byte_code else ["-X", "pycache_prefix=/dev/null"]
    words = [sys.executable, *given, "-c", program]
    return subprocess.run(words, env={**ENVIRONMENT, **more}, check=True).returncode


@contextmanager
def pruned_sdk() -> Iterator[Path]:
    """Copy the installed SDK, leave out the data of other services, compile it."""
    spec = spec_from_file_location("sdk_data", PRUNING)
    assert spec is not None
    assert spec.loader is not None
    sdk_data = module_from_spec(spec)
    spec.loader.exec_module(sdk_data)
    with TemporaryDirectory() as folder:
        for name in ("botocore", "boto3"):
            found = find_spec(name)
            assert found is not None
            assert found.origin is not None
            shutil.copytree(Path(found.origin).parent, Path(folder) / name)
        sdk_data.prune(Path(folder), ())
        compileall.compile_dir(folder, quiet=2)
        yield Path(folder)


def children_cpu_s() -> float:
    """Return the CPU seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def same(ours: int, theirs: int) -> None:
    assert ours == theirs == 0


def size(program: str, **more: str) -> tuple[int, int]:
    """Return how many modules a program has loaded at its end, and the MiB of its process."""
    words, env = [sys.executable, "-c", program + SIZE], {**ENVIRONMENT, **more}
    told = subprocess.run(words, env=env, check=True, stdout=subprocess.PIPE).stdout.split()
    return int(told[0]), int(told[1])


def contests() -> Iterator[Contest | Figures]:
    for name, byte_code in (("cold_start", True), ("cold_start_no_byte_code", False)):
        run = partial(start, byte_code=byte_code)
        yield Contest(
            name=name,
            compares="fresh process, " + ("byte code cached" if byte_code else "no byte code"),
            ours=partial(run, OURS),
            peer=partial(run, THEIRS),
            peer_name="boto3.client('kinesis')",
            check=same,
            gate=2.0 if byte_code else None,
            goal=2.8 if byte_code else None,
            time_goes_to="botocore's exceptions and parsers, which the wire shares with the SDK.",
            clock=children_cpu_s,
            others={"the worker's entry point": partial(run, WORKER)},
        )
    with tls_server.serving({"empty": EMPTY}) as (endpoint, certificate):
        near = {"AWS_ENDPOINT_URL": endpoint, "AWS_CA_BUNDLE": str(certificate)}
        yield Contest(
            name="cold_start_worker",
            compares="fresh process of the worker until its first page, byte code cached",
            ours=partial(start, READY_WORKER, more=near),
            peer=partial(start, READY_FUNCTION, more=near),
            peer_name="a function with boto3's clients of Kinesis and DynamoDB",
            check=same,
            goal=1.0,
            time_goes_to="the interpreter and the standard library, TLS, the worker's modules.",
            clock=children_cpu_s,
        )
        worker, function = size(READY_WORKER, **near), size(READY_FUNCTION, **near)
    yield Figures(
        name="cold_start_worker_size",
        compares="what a worker has loaded at its first page",
        summary=(
            f"{worker[0]} modules and {worker[1]} MiB; a function with boto3's clients of Kinesis "
            f"and DynamoDB {function[0]} and {function[1]} MiB"
        ),
        details={"worker": worker, "function": function},
    )
    with pruned_sdk() as path:
        yield Contest(
            name="cold_start_pruned_sdk",
            compares="fresh process with two clients, byte code cached",
            ours=partial(start, CLIENTS, more={"PYTHONPATH": str(path)}),
            peer=partial(start, CLIENTS),
            peer_name="the SDK with all its data",
            check=same,
            clock=children_cpu_s,
        )


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
