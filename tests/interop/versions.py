"""
The versions of the Java KCL, and where their jars are.

3.1 comes whole in a wheel, which ``make interop`` installs; the others come from Maven Central,
once, where it can be reached.
"""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.kcl import JARS, NO_JDK, tool, why_not

ROOT = Path(__file__).resolve().parents[2]
FETCH_S = 600
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.7.1:copy-dependencies"


@dataclass(frozen=True)
class Version:
    """A version: its short name, the whole one, and whether its workers hand leases over."""

    name: str
    release: str
    hands_over: bool = True

    @property
    def jars(self):
        return JARS if self.name == "3.1" else ROOT / f".venv/kcl-{self.release}"

    def why_not(self):
        """Return why it cannot be run; "" if it can. Its jars are fetched if they are not there."""
        if not (tool("javac") and tool("java")):
            return NO_JDK
        if self.name == "3.1":
            return why_not()
        if next(self.jars.glob(f"amazon-kinesis-client-{self.release}.jar"), None):
            return ""
        if not shutil.which("mvn"):
            return f"KCL {self.release}: no mvn to fetch it with"
        return self._fetched()

    def _fetched(self):
        # Strict checksums: what does not arrive whole is refused.
        command = ["mvn", "-q", "-B", "-C", "-f", str(ROOT / "tests/interop/pom.xml"),
                   f"-Dkcl.version={self.release}", _COPY,
                   f"-DoutputDirectory={self.jars}"]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, timeout=FETCH_S, check=False)
        except subprocess.TimeoutExpired:
            return f"KCL {self.release}: Maven Central did not answer within {FETCH_S} s"
        if done.returncode:
            shutil.rmtree(self.jars, ignore_errors=True)
            said = done.stdout.decode(errors="replace").strip().splitlines() or ["nothing"]
            return f"KCL {self.release}: Maven said: {said[0]:.200}"
        return ""


VERSIONS = {
    each.name: each
    for each in (Version("2.7", "2.7.2", hands_over=False), Version("3.1", "3.1.3"),
                 Version("3.5", "3.5.1"))
}  # fmt: skip
