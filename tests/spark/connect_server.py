"""A Spark Connect server on loopback, until its standard input ends: `… connect_server.py PORT`."""

import os
import socket
import subprocess
import sys
import uuid
from contextlib import contextmanager

from pyspark.sql import SparkSession

from shardfleet_spark.host.local_python import local_python
from tests.spark.conftest import SETTINGS
from tests.test_tidy import ROOT

_END_LIMIT_S = 300


@contextmanager
def serving(home, credentials):
    """
    Run a server in a process of its own, as a cluster has it; yield its address with the token.

    Args:
        home: of Java.
        credentials: the file with the keys that Spark's processes use.

    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    token = uuid.uuid4().hex
    environment = {
        **os.environ,
        "JAVA_HOME": str(home),
        "PYSPARK_PYTHON": str(local_python()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
        "AWS_SHARED_CREDENTIALS_FILE": str(credentials),
        "PYTHONPATH": str(ROOT),
    }
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "tests.spark.connect_server", str(port)]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        yield f"sc://localhost:{port}/;token={token}"
        process.stdin.close()
        process.wait(_END_LIMIT_S)


if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]").config(map=SETTINGS)
    builder = builder.config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
    builder = builder.config("spark.connect.grpc.binding.address", "127.0.0.1")
    session = builder.config("spark.connect.grpc.binding.port", sys.argv[1]).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    session.stop()
