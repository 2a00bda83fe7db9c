"""The Java KCL as a consumer beside a fleet: workers, each a process with default settings."""

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

from shardfleet_processes.cpu import ECS_VARIABLE
from tests.conformance.kcl import tool
from tests.interop.checker import Delivery

HERE = Path(__file__).resolve().parent
STOP_S = 90
_LOGGED = re.compile(r"^[\d:.]+ (WARN|ERROR) +(\S+) (.*)$")


class JavaConsumer:
    """
    The Java side; a context, at whose end no worker is left.

    Args:
        folder: where its classes, its ledger and its logs are.
        aws: the account.
        stream: name.
        application: name, which is the lease table's.
        jars: folder of the KCL's version that its workers are of if nothing else is said.
        cpu_at: returns where a worker reads its task's CPU, as in ECS; None: they have no CPU.
        consumer: ARN of the consumer by which records are pushed, empty: one of its own; None: it
            polls.

    Attributes:
        workers: worker id to its process, those that have ended too.

    """

    def __init__(self, folder, aws, *, stream, application, jars, cpu_at=None, consumer=None):
        self._folder = folder
        self._aws = aws
        self._given = [aws.endpoint_url, stream, application]
        self._jars = jars
        self._cpu_at = cpu_at
        self._reading = [] if consumer is None else [f"-Dconsumer={consumer}"]
        self._ended = set()
        self.ledger = folder / "java.jsonl"
        self.workers = {}

    def __enter__(self):
        shutil.copy(HERE / "logback.xml", self._folder)
        self.ledger.touch()
        self._path(self._jars)
        return self

    def __exit__(self, *_):
        for worker in self.living:
            self.kill(worker)

    def start(self, jars=None, upgrades=()):
        """
        Start one more worker and return its id.

        Args:
            jars: of another version.
            upgrades: its ``ClientVersionConfig``, if it is to say.

        """
        worker, path = f"java-{len(self.workers) + 1}", self._path(jars or self._jars)
        task = {ECS_VARIABLE: self._cpu_at(worker)} if self._cpu_at else {}
        # The embedded Kinesis speaks JSON; the SDK sends CBOR unless it is told not to.
        options = ["-Daws.cborEnabled=false", "-Xmx256m", "-XX:+UseSerialGC", "-cp", path]
        with self._log(worker).open("wb") as log:
            self.workers[worker] = subprocess.Popen(
                [
                    tool("java"),
                    *options,
                    *self._reading,
                    "Consumer",
                    *self._given,
                    worker,
                    str(self.ledger),
                    *upgrades,
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={"PATH": "/usr/bin:/bin", "AWS_EC2_METADATA_DISABLED": "true"}
                | self._aws.environment()
                | task,
            )
        return worker

    def _path(self, jars):
        """Compile the consumer for a version, once, and return where all its classes are."""
        classes = self._folder / f"for-{jars.name}"
        path = f"{classes}:{self._folder}:{jars}/*"
        if not classes.exists():
            source = str(HERE / "Consumer.java")
            compiled = [tool("javac"), "-nowarn", "-d", str(classes), "-cp", path, source]
            subprocess.run(compiled, check=True, timeout=300)
        return path

    def kill(self, worker):
        """End one with SIGKILL."""
        self._ended.add(worker)
        self.workers[worker].kill()
        self.workers[worker].wait()

    def stop(self, worker):
        """Let one end in order, which hands nothing back: its leases are left to expire."""
        self._ended.add(worker)
        self.workers[worker].stdin.close()
        self.workers[worker].wait(timeout=STOP_S)

    @property
    def living(self):
        return [worker for worker in self.workers if worker not in self._ended]

    @property
    def died(self):
        """Return the workers that ended by themselves."""
        return [each for each in self.living if self.workers[each].poll() is not None]

    def logged(self):
        """Return how often they said what, at which level; numbers and ids left out."""
        found = Counter()
        for worker in self.workers:
            for line in self._log(worker).read_text("utf-8", errors="replace").splitlines():
                if said := _LOGGED.match(line):
                    level, logger, text = said.groups()
                    found[f"{level} {logger}: {_plain(text)}"] += 1
        return found

    def _log(self, worker):
        return self._folder / f"{worker}.log"


def _plain(text):
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|shardId-\d+", "…", text)
    return re.sub(r"\d+(\.\d+)?", "n", text)[:160]


def deliveries(file, side):
    """Read a ledger of either side: the demo's form, one line for each call."""
    text = file.read_text("utf-8")
    # A process that is killed leaves half a line, or is in the middle of one.
    for line in text[: text.rfind("\n") + 1].splitlines():
        told = json.loads(line)
        rows = tuple((int(number), sub) for number, sub, _ in told["rows"])
        yield Delivery(told["at_ms"], side, told["shard"], rows)
