"""
The KPL's own daemon as a process: records in by its pipe, aggregates out to a Kinesis over TLS.

Its native binary is taken out of the KPL's jar, which comes from Maven Central, once, where it can
be reached; what it must be is pinned here. Nothing of it ships. The pipe carries the messages of
``messages.proto`` and ``config.proto``, each behind its length; they are few enough to be written
by hand.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
import zipfile
from pathlib import Path

from tests.conformance.kcl import ROOT

RELEASE = "1.1.1"
JAR = ROOT / f".venv/kpl-{RELEASE}/amazon-kinesis-producer-{RELEASE}.jar"
SHA256 = "e6db5e9519013496d14d5665a1fee888b2fca86a8f1dd8e783b2f86f8cb7ea5c"
FETCH_S, START_S, END_S = 600, 60, 30
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.7.1:copy"
_BINARY = "amazon-kinesis-producer-native-binaries/{}/kinesis_producer"
_MACHINES = {"x86_64": "linux-x86_64", "aarch64": "linux-aarch64"}
# Fields of messages.proto's Message and of what is in it.
_ID, _PUT, _FLUSH, _RESULT, _CONFIGURATION, _CREDENTIALS = 1, 3, 4, 5, 6, 9
# Of PutRecordResult.
_IS_STORED, _NUMBER = 2, 4
_VARINT, _BYTES = 0, 2


def why_not():
    """Return why the daemon cannot be run; "" if it can."""
    if platform.system() != "Linux" or platform.machine() not in _MACHINES:
        return "the KPL's daemon: none for this machine"
    if not JAR.exists():
        return "the KPL's daemon is not there: make conformance brings it"
    found = hashlib.sha256(JAR.read_bytes()).hexdigest()
    return "" if found == SHA256 else f"the KPL's daemon {RELEASE}: its jar's SHA-256 is {found}"


def fetch():
    """Bring it, if it is not there; return why it could not be brought."""
    if JAR.exists():
        return ""
    if not shutil.which("mvn"):
        return "the KPL's daemon: no mvn to fetch it with"
    with tempfile.TemporaryDirectory(prefix="shardfleet-kpl-") as nowhere:
        artifact = f"software.amazon.kinesis:amazon-kinesis-producer:{RELEASE}"
        # Strict checksums: what does not arrive whole is refused.
        command = ["mvn", "-q", "-B", "-C", _COPY, f"-DoutputDirectory={JAR.parent}",
                   f"-Dartifact={artifact}"]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=FETCH_S, check=False, cwd=nowhere
            )
        except subprocess.TimeoutExpired:
            return f"the KPL's daemon: Maven Central did not answer within {FETCH_S} s"
    said = done.stdout.decode(errors="replace").strip().splitlines() or ["nothing"]
    return "" if not done.returncode else f"the KPL's daemon: Maven said: {said[0]:.200}"


class KplDaemon:
    """
    A daemon at work; a context.

    Args:
        endpoint: host and port of a Kinesis that speaks TLS.
        authority: file with the certificate that it shows.
        key: (id, secret) with which requests are signed.
        settings: fields of config.proto's Configuration by number.

    Attributes:
        stored: sequence number of each record that it told to be stored, as they came.
        failed: what it told of those that were not.

    """

    def __init__(self, endpoint, authority, key, settings):
        self._authority = authority
        host, port = endpoint
        self._configuration = _message(
            0,
            _CONFIGURATION,
            _fields({11: host, 12: port, 13: "warning", 16: "none", 23: "us-east-1", **settings}),
        )
        self._key = _fields({1: key[0], 2: key[1]})
        self._ids = 0
        self.stored, self.failed = [], []
        self._told = threading.Condition()

    def __enter__(self):
        """Unpack it, start it, and connect both pipes."""
        self._folder = tempfile.TemporaryDirectory(prefix="shardfleet-kpl-")
        folder = Path(self._folder.name)
        with zipfile.ZipFile(JAR) as jar:
            program = jar.extract(_BINARY.format(_MACHINES[platform.machine()]), folder)
        Path(program).chmod(0o700)
        to_it, from_it = folder / "to", folder / "from"
        for pipe in (to_it, from_it):
            os.mkfifo(pipe, 0o600)
        # It names the pipes as its parent sees them: what it reads is the parent's output.
        command = [program, "-o", to_it, "-i", from_it, "-c", self._configuration.hex(),
                   "-l", "warning"]  # fmt: skip
        self._log = (folder / "log").open("w+b")
        self._process = subprocess.Popen(
            command,
            env={"CA_DIR": str(folder), "CA_FILE": str(self._authority)},
            cwd=folder,
            stdout=self._log,
            stderr=self._log,
        )
        self._listener = threading.Thread(target=self._listen, args=(from_it,), daemon=True)
        self._listener.start()
        self._pipe = _opened(to_it, self._process, self.said)
        for is_for_metrics in (0, 1):
            self._send(_CREDENTIALS, _fields({1: is_for_metrics, 2: self._key}))
        return self

    def __exit__(self, *_):
        """End it."""
        self._process.kill()
        self._process.wait(timeout=END_S)
        self._pipe.close()
        self._listener.join(timeout=END_S)
        self._log.close()
        self._folder.cleanup()

    def put(self, stream, partition_key, data, explicit_hash_key=None):
        """Hand a record over."""
        fields = {1: stream, 2: partition_key, 4: data}
        if explicit_hash_key is not None:
            fields[3] = explicit_hash_key
        self._send(_PUT, _fields(dict(sorted(fields.items()))))

    def flush(self, stream):
        """Ask it to send what it has."""
        self._send(_FLUSH, _fields({1: stream}))
        self._pipe.flush()

    def wait(self, count, within_s):
        """Wait until it has told of so many records; return whether it has."""
        with self._told:
            return self._told.wait_for(
                lambda: len(self.stored) + len(self.failed) >= count, within_s
            )

    def said(self):
        """Return what it printed."""
        self._log.flush()
        return Path(self._log.name).read_text("utf-8", errors="replace")

    def _send(self, kind, body):
        self._ids += 1
        message = _message(self._ids, kind, body)
        self._pipe.write(len(message).to_bytes(4, "big") + message)

    def _listen(self, path):
        with path.open("rb") as pipe:
            while length := pipe.read(4):
                message = dict(_parsed(pipe.read(int.from_bytes(length, "big"))))
                result = message.get(_RESULT)
                if result is None:
                    continue
                told = dict(_parsed(result))
                with self._told:
                    if told.get(_IS_STORED):
                        self.stored.append(told[_NUMBER])
                    else:
                        self.failed.append(result)
                    self._told.notify_all()


def _opened(path, process, said):
    """Open the pipe once somebody reads it; a process that ends instead says why."""
    for _ in range(10 * START_S):
        try:
            file = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            try:
                process.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                continue
            break
        os.set_blocking(file, True)
        return os.fdopen(file, "wb", buffering=1 << 20)
    raise RuntimeError(f"the KPL's daemon did not begin: {said()}")


def _message(number, kind, body):
    return _field(_ID, number) + _field(kind, body)


def _fields(values):
    return b"".join(_field(number, value) for number, value in values.items())


def _field(number, value):
    if isinstance(value, int):
        return _number(number << 3 | _VARINT) + _number(int(value))
    content = value.encode() if isinstance(value, str) else value
    return _number(number << 3 | _BYTES) + _number(len(content)) + content


def _number(value):
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _parsed(data):
    """Yield field number and value of varints and bytes."""
    at = 0
    while at < len(data):
        tag, at = _read_number(data, at)
        value, at = _read_number(data, at)
        if tag & 7 == _BYTES:
            value, at = data[at : at + value], at + value
        yield tag >> 3, value


def _read_number(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
