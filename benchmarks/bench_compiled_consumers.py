"""
What does a whole consumer cost beside a loop of the SDK for Go, and beside the Java KCL?

The streams, the embedded AWS and our worker's turn are those of `bench_e2e_consumer.py`, but there
are ten times as many records, so that a turn's beginning and end weigh less. The Go loop does less
than ours: no leases, no checkpoints, no handler's thread. The Java KCL does the same; its CPU time
counts from the first shard that it begins to read, without the sync of shards and the election of a
leader. Both live on from run to run, and run until they are warm before anything is measured.

The Go loop is built by the `go` on PATH (its modules are pinned in `consumers/go_loop/go.sum`), the
KCL's is compiled against the jars that `make conformance` installs; where one of them cannot be
had, its contests are skipped with the reason. Both speak JSON here: to AWS the SDK for Java speaks
CBOR, which spares it base64, and which the embedded Kinesis does not know.

    python benchmarks/bench_compiled_consumers.py [--only NAME] [--rounds 15] [--folder DIR]
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import side_by_side
from bench_e2e_consumer import (
    OURS,
    PEERS,
    Account,
    Consumer,
    Load,
    aggregated,
    plain,
    process_environment,
    same,
)
from consumers.protocol import Task
from side_by_side import Contest, Skipped

from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.aws.settings import AwsBehaviour

HERE = Path(__file__).parent
CONSUMERS = HERE / "consumers"
JARS = HERE.parent / ".venv" / "kcl" / "amazon_kclpy" / "jars"
BUILD_LIMIT_S = 300
PLAIN, AGGREGATED = "plain_1k", "kpl_100b"
GO, KCL = "go", "kcl"
# Runs of a peer before anything is measured: the JVM compiles what it runs most.
WARM_UP = {GO: 2, KCL: 6}
PEER_NAMES = {
    GO: "a loop of aws-sdk-go-v2 1.48.0, no leases, no checkpoints",
    KCL: "the Java KCL 3.1.3, warm",
}
# The goals are at most 1.1 times the Go loop's CPU time, and 0.6 times the KCL's.
GATES: dict[tuple[str, str], tuple[float | None, float | None]] = {
    (PLAIN, GO): (0.91, 0.91),
    (PLAIN, KCL): (1.5, 1.67),
    (AGGREGATED, KCL): (None, None),
}


class Unavailable(Exception):
    """A peer that cannot be made here, and why."""


def go_loop() -> Sequence[str]:
    """Return the words that start the Go loop, built once per source; raise Unavailable."""
    source = CONSUMERS / "go_loop"
    if not (go := shutil.which("go")):
        raise Unavailable("there is no go on PATH")
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in sorted(source.iterdir())))
    program = PEERS / f"go-{digest.hexdigest()[:12]}"
    if not program.exists():
        # No toolchain is fetched: the one that is there, or none.
        env = os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly -buildvcs=false"}
        _built([go, "build", "-o", str(program), "."], cwd=source, env=env, what="the Go loop")
    return [str(program)]


def kcl_loop() -> Sequence[str]:
    """Return the words that start the KCL's consumer, compiled anew; raise Unavailable."""
    java, javac = shutil.which("java"), shutil.which("javac")
    if not (java and javac):
        raise Unavailable("there is no JDK on PATH")
    if not any(JARS.glob("amazon-kinesis-client-3.*.jar")):
        raise Unavailable("the KCL's jars are not there: make conformance brings them")
    classes = PEERS / "kcl"
    path = f"{classes}{os.pathsep}{JARS}/*"
    source = CONSUMERS / "KclLoop.java"
    words = [javac, "-nowarn", "-d", str(classes), "-cp", path, str(source)]
    _built(words, cwd=HERE, env=dict(os.environ), what="the KCL's consumer")
    shutil.copy(HERE.parent / "tests" / "interop" / "logback.xml", classes)
    # The cheapest collector, and room enough that it has little to do.
    options = ["-Daws.cborEnabled=false", "-Xms3g", "-Xmx3g", "-XX:+UseSerialGC", "-cp", path]
    return [java, *options, "KclLoop"]


def _built(words: Sequence[str], *, cwd: Path, env: dict[str, str], what: str) -> None:
    PEERS.mkdir(parents=True, exist_ok=True)
    try:
        run = partial(subprocess.run, check=True, timeout=BUILD_LIMIT_S, capture_output=True)
        run(words, cwd=cwd, env=env)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or b"").decode().strip().splitlines()
        raise Unavailable(f"{what} cannot be built: {' '.join(said[-1:])}") from error


class Peer:
    """
    A peer's process, warm before its first contest.

    Attributes:
        consumer: the process.

    """

    def __init__(self, name: str, consumer: Consumer, account: Account) -> None:
        """Take the process as it was started."""
        self.name, self.consumer, self._account = name, consumer, account

    def against(self, ours: Consumer, load: Load, task: Task) -> Contest:
        """Return the contest on one load."""
        consume = partial(self.consumer.consume, self._account, task)
        for _ in range(WARM_UP[self.name]):
            consume()
        gate, goal = GATES[load.name, self.name]
        return Contest(
            name=f"e2e_consumer_{load.name}_vs_{self.name}",
            compares=f"{load.records:,} {load.what}, consumed and checkpointed",
            ours=partial(ours.consume, self._account, task),
            peer=consume,
            peer_name=PEER_NAMES[self.name],
            check=same,
            gate=gate,
            goal=goal,
            unit_bytes=load.size,
            clock=lambda: ours.cpu_s + self.consumer.cpu_s,
        )


def contests() -> Iterator[Contest | Skipped]:
    """Yield the plain records against both, the aggregates against the KCL."""
    os.environ["TZ"] = "UTC"  # As in Lambda.
    loads = {PLAIN: plain(50_000), AGGREGATED: aggregated(1_000)}
    with ExitStack() as stack:
        aws = stack.enter_context(EmbeddedAws(behaviour=AwsBehaviour(kinesis_quotas=False)))
        account = Account(aws)

        def started(words: Sequence[str], tables: Callable[[Task], Task]) -> Consumer:
            env = process_environment(aws, words[-1])
            env["AWS_EC2_METADATA_DISABLED"] = "true"
            consumer = Consumer(words, env=env, tables=tables)
            stack.callback(consumer.close)
            return consumer

        ours = started([sys.executable, OURS], account.our_tables)
        tasks = {name: account.stream(load) for name, load in loads.items()}
        made = {GO: (go_loop, lambda task: task), KCL: (kcl_loop, account.kcl_tables)}
        for name, (words, tables) in made.items():
            mine = [load for load, peer in GATES if peer == name]
            try:
                peer = Peer(name, started(words(), tables), account)
            except Unavailable as why:
                for load in mine:
                    yield Skipped(name=f"e2e_consumer_{load}_vs_{name}", reason=str(why))
                continue
            for load in mine:
                yield peer.against(ours, loads[load], tasks[load])


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
