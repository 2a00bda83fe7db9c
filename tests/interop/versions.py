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
IN_WHEEL = "3.1.3"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.7.1:copy-dependencies"


def jars_of(release):
    """Return the folder of a release's jars."""
    return JARS if release == IN_WHEEL else ROOT / f".venv/kcl-{release}"


@dataclass(frozen=True)
class Version:
    """
    A version.

    Attributes:
        name: short.
        release: the whole one.
        hands_over: its workers hand leases over.
        before: the release that is upgraded from, if that is what is run.
        is_long: it is run when it is asked for by its name, and not with the others.
        shards: of the stream; 0: as many as usual.
        processes: of `shardfleet work` that are its fleet, balanced with Java by CPU; 0: a stack.
        consumers: by which records are pushed to both, one for each or one for both; 0: both poll.

    """

    name: str
    release: str
    hands_over: bool = True
    before: str = ""
    is_long: bool = False
    shards: int = 0
    processes: int = 0
    consumers: int = 0

    @property
    def jars(self):
        return jars_of(self.release)

    def why_not(self):
        """Return why it cannot be run; "" if it can. Its jars are fetched if they are not there."""
        if not (tool("javac") and tool("java")):
            return NO_JDK
        wanted = (each for each in (self.before, self.release) if each)
        return next(filter(None, map(_why_not, wanted)), "")


def _why_not(release):
    if release == IN_WHEEL:
        return why_not()
    if next(jars_of(release).glob(f"amazon-kinesis-client-{release}.jar"), None):
        return ""
    if not shutil.which("mvn"):
        return f"KCL {release}: no mvn to fetch it with"
    return _fetched(release)


def _fetched(release):
    # Strict checksums: what does not arrive whole is refused.
    jars = jars_of(release)
    command = ["mvn", "-q", "-B", "-C", "-f", str(ROOT / "tests/interop/pom.xml"),
               f"-Dkcl.version={release}", _COPY, f"-DoutputDirectory={jars}"]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, timeout=FETCH_S, check=False)
    except subprocess.TimeoutExpired:
        return f"KCL {release}: Maven Central did not answer within {FETCH_S} s"
    if done.returncode:
        shutil.rmtree(jars, ignore_errors=True)
        said = done.stdout.decode(errors="replace").strip().splitlines() or ["nothing"]
        return f"KCL {release}: Maven said: {said[0]:.200}"
    return ""


VERSIONS = {
    each.name: each
    for each in (Version("2.7", "2.7.2", hands_over=False), Version("3.1", IN_WHEEL),
                 Version("3.5", "3.5.1"),
                 Version("2.7-3.1", IN_WHEEL, hands_over=False, before="2.7.2", is_long=True),
                 Version("3.1-aborted", IN_WHEEL, is_long=True),
                 Version("3.1-aborted-alone", IN_WHEEL, is_long=True),
                 Version("2.7-aborted", "2.7.2", hands_over=False, is_long=True),
                 Version("3.1-processes", IN_WHEEL, is_long=True, shards=24, processes=2),
                 Version("3.5-processes", "3.5.1", is_long=True, shards=24, processes=2),
                 Version("3.1-one-consumer", IN_WHEEL, is_long=True, consumers=1),
                 Version("3.1-two-consumers", IN_WHEEL, is_long=True, consumers=2),
                 Version("3.5-one-consumer", "3.5.1", is_long=True, consumers=1),
                 Version("3.5-two-consumers", "3.5.1", is_long=True, consumers=2))
}  # fmt: skip
