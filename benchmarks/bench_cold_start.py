"""
How long does a fresh process take until it can read a stream?

Ours: everything that a worker needs for GetRecords (botocore's session and client for credentials
and endpoint, our wire and decoder), and for comparison the whole entry point of the worker. The
peer is `boto3.client("kinesis")`. Byte code is cached in the first contest, as a layer with byte
code has it; in the second it is not, as a read-only layer without. The third makes two clients by
an SDK that has the data of the fleet's services only (`sdk_services`), against the whole one. CPU
time of the fresh processes, which on a machine of their own is their wall time.

The fourth is the whole of it, at the entry point: `worker_handler` from the start of its process to
the first call of the user's handler (`first_batch.py`), beside a function that imports boto3, makes
clients of Kinesis and DynamoDB, and reads the same record; both over TLS. How many modules each has
loaded by then, and how much memory it has, is told beside it. That nothing of the SDK is among the
worker's is tested (tests/end_to_end/test_first_batch.py).

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
from first_batch import WaitingFleet, waiting_fleet
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
    return subprocess.run(
        words, env={**ENVIRONMENT, **more}, check=True, stdout=subprocess.DEVNULL
    ).returncode


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


def first_batch(fleet: WaitingFleet, program: str) -> int:
    """Let a program come to its first batch; the fleet is as a manager left it."""
    fleet.set_back()
    return start(program, more=fleet.environment)


def size(fleet: WaitingFleet, program: str) -> tuple[int, int]:
    """Return how many modules a program has loaded at its first batch, and its process's MiB."""
    fleet.set_back()
    words, env = [sys.executable, "-c", program], {**ENVIRONMENT, **fleet.environment}
    told = subprocess.run(words, env=env, check=True, stdout=subprocess.PIPE).stdout.split()
    return int(told[-2]), int(told[-1])


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
    with waiting_fleet() as fleet:
        yield Contest(
            name="cold_start_worker",
            compares="fresh process until the handler's first batch, byte code cached",
            ours=partial(first_batch, fleet, fleet.worker),
            peer=partial(first_batch, fleet, fleet.function),
            peer_name="a function with boto3's clients of Kinesis and DynamoDB",
            check=same,
            goal=1.4,
            time_goes_to="the interpreter and the standard library, TLS, the worker's modules.",
            clock=children_cpu_s,
        )
        worker, function = size(fleet, fleet.worker), size(fleet, fleet.function)
    yield Figures(
        name="cold_start_worker_size",
        compares="what a worker has loaded at its first batch",
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
