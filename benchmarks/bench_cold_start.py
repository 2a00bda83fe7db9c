"""
How long does a fresh process take until it can read a stream?

Ours: everything that a worker needs for GetRecords (botocore's session and client for credentials
and endpoint, our wire and decoder), and for comparison the whole entry point of the worker. The
peer is `boto3.client("kinesis")`. Byte code is cached in the first contest, as a layer with byte
code has it; in the second it is not, as a read-only layer without. CPU time of the
fresh processes, which on a machine of their own is their wall time.

    python benchmarks/bench_cold_start.py [--only cold_start] [--rounds 7] [--folder DIR]
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import side_by_side
from side_by_side import Contest

ENVIRONMENT = {
    **os.environ,
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
OURS = """
import shardfleet.adapters.http_connections, shardfleet.adapters.sigv4
import msgspec, pybase64, ssl
ssl.create_default_context()
"""
WORKER = "import shardfleet.runtime.entry_points"
THEIRS = "import boto3; boto3.client('kinesis')"


def start(program: str, *, byte_code: bool) -> int:
    """Run a program in a fresh process; without byte code nothing cached is read or written."""
    given = [] if byte_code else ["-X", "pycache_prefix=/dev/null"]
    words = [sys.executable, *given, "-c", program]
    return subprocess.run(words, env=ENVIRONMENT, check=True).returncode


def children_cpu_s() -> float:
    """Return the CPU seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def same(ours: int, theirs: int) -> None:
    assert ours == theirs == 0


def contests() -> Iterator[Contest]:
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


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
