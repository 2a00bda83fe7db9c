"""
The Java KCL as a process that answers: lines of JSON in, lines of JSON out (Driver.java).

Its jars come whole in a wheel, pinned in requirements-kcl.lock, which ``make conformance`` installs
where nothing imports it. Nothing of it ships.
"""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / ".venv/kcl/amazon_kclpy/jars"
SOURCES = sorted(map(str, Path(__file__).parent.glob("*.java")))
NO_JDK = "no JDK: needs java and javac"
MAIN = "software.amazon.kinesis.leases.Driver"


def why_not():
    """Return why there is no KCL to be asked; "" if there is one."""
    if not next(JARS.glob("amazon-kinesis-client-3.*.jar"), None):
        return "the KCL is not there: make conformance brings it"
    if not (tool("javac") and tool("java")):
        return NO_JDK
    return ""


def tool(name):
    home = os.environ.get("JAVA_HOME")
    return shutil.which(name, path=f"{home}/bin") if home else shutil.which(name)


class Kcl:
    """A process that is asked; a context. A question is put before its answer is waited for."""

    def __enter__(self):
        """Compile the driver and start it."""
        self._folder = tempfile.TemporaryDirectory(prefix="shardfleet-kcl-")
        path = f"{self._folder.name}:{JARS}/*"
        compiled = [tool("javac"), "-nowarn", "-d", self._folder.name, "-cp", path, *SOURCES]
        subprocess.run(compiled, check=True, timeout=300)
        started = [tool("java"), "-Xmx512m", "-XX:+UseSerialGC", "-cp", path, MAIN]
        self._process = subprocess.Popen(
            ["nice", *started], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(self, *_):
        """End it."""
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()
        self._folder.cleanup()

    def ask(self, area, cases):
        """Put a question for each case, and do not wait."""
        line = json.dumps({"area": area, "cases": cases}, ensure_ascii=False)
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def answers(self):
        """Wait for the answers to what was asked first."""
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the KCL's process ended: {self._process.wait(timeout=60)}")
        return json.loads(line)
