"""The Java KCL as a consumer beside a fleet: one process, its Scheduler with default settings."""

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

from tests.conformance.kcl import JARS, tool
from tests.interop.checker import Delivery

HERE = Path(__file__).resolve().parent
STOP_S = 90
_LOGGED = re.compile(r"^[\d:.]+ (WARN|ERROR) +(\S+) (.*)$")


class JavaConsumer:
    """
    A worker of the Java side; a context, within which it runs unless it is killed.

    Args:
        folder: where its classes, its ledger and its log are.
        aws: the account.
        stream: name.
        application: name, which is the lease table's.

    """

    worker_id = "java-1"

    def __init__(self, folder, aws, *, stream, application):
        self._folder = folder
        self._aws = aws
        self._given = [aws.endpoint_url, stream, application, self.worker_id]
        self.ledger = folder / "java.jsonl"
        self.log = folder / "java.log"

    def __enter__(self):
        path = f"{self._folder}:{JARS}/*"
        source = str(HERE / "Consumer.java")
        compiled = [tool("javac"), "-nowarn", "-d", str(self._folder), "-cp", path, source]
        subprocess.run(compiled, check=True, timeout=300)
        shutil.copy(HERE / "logback.xml", self._folder)
        self.ledger.touch()
        # The embedded Kinesis speaks JSON; the SDK sends CBOR unless it is told not to.
        options = ["-Daws.cborEnabled=false", "-Xmx256m", "-XX:+UseSerialGC", "-cp", path]
        started = [tool("java"), *options, "Consumer"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*started, *self._given, str(self.ledger)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={"PATH": "/usr/bin:/bin", "AWS_EC2_METADATA_DISABLED": "true"}
                | self._aws.environment(),
            )
        return self

    def __exit__(self, *_):
        """Let it end in order, which hands nothing back: others wait for its leases to expire."""
        self._process.stdin.close()
        try:
            self._process.wait(timeout=STOP_S)
        finally:
            self._process.kill()
            self._process.wait()

    @property
    def runs(self):
        return self._process.poll() is None

    def logged(self):
        """Return how often it said what, at which level; numbers and ids left out."""
        found = Counter()
        for line in self.log.read_text("utf-8", errors="replace").splitlines():
            if said := _LOGGED.match(line):
                level, logger, text = said.groups()
                found[f"{level} {logger}: {_plain(text)}"] += 1
        return found


def _plain(text):
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|shardId-\d+", "…", text)
    return re.sub(r"\d+(\.\d+)?", "n", text)[:160]


def deliveries(file, side):
    """Read a ledger of either side: the demo's form, one line for each call."""
    for line in file.read_text("utf-8").splitlines():
        told = json.loads(line)
        rows = tuple((int(number), sub) for number, sub, _ in told["rows"])
        yield Delivery(told["at_ms"], side, told["shard"], rows)
