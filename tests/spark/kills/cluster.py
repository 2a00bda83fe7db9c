"""A standalone Spark cluster on the loopback interface: one master, two workers."""

import contextlib
import os
import re
import subprocess
import time
from pathlib import Path

import pyspark

from shardfleet_spark.host.java import find_java
from shardfleet_spark.host.local_python import local_python
from tests.spark.kills import processes

START_LIMIT_S = 240
WORKER_HOSTS = ("127.0.0.2", "127.0.0.3")
"""Two hosts: Spark never starts a speculative copy on the host of the first attempt."""

_HOME = Path(pyspark.__file__).parent
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Successfully registered with master"


def spark_environment(host):
    """Return the environment of a Spark process on a loopback address."""
    return os.environ | {
        "JAVA_HOME": str(find_java()),
        "PYSPARK_DRIVER_PYTHON": str(local_python()),
        "PYSPARK_PYTHON": str(local_python()),
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_MEMORY": "300m",
        # Executors are killed more often than an application is usually forgiven.
        "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
    }


class Cluster:
    """
    The cluster, as a context manager.

    Attributes:
        url: of the master.
        sessions: ids of the sessions of its processes, executors included.

    """

    def __init__(self, folder, *, cores=2, memory="700m"):
        self._folder = folder
        self._cores = cores
        self._memory = memory
        self._started = []
        self.url = ""

    @property
    def sessions(self):
        return {process.pid for process in self._started}

    def __enter__(self):
        try:
            log = self._start("master", "master.Master", "127.0.0.1", [])
            self.url = self._wait_for(log, _MASTER_URL)[1]
            logs = [self._start_worker(host) for host in WORKER_HOSTS]
            for log in logs:
                self._wait_for(log, re.compile(_REGISTERED))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        processes.end(self.sessions)
        for process in self._started:
            process.wait()

    def _start_worker(self, host):
        arguments = ["--cores", str(self._cores), "--memory", self._memory]
        arguments += ["--work-dir", str(self._folder / f"work-{host}"), self.url]
        return self._start(f"worker-{host}", "worker.Worker", host, arguments)

    def _start(self, name, role, host, arguments):
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._folder / f"{name}.log"
        command = [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}"]
        command += ["--host", host, "--port", "0", "--webui-port", "0", *arguments]
        with log.open("wb") as output:
            self._started.append(
                subprocess.Popen(
                    command,
                    env=spark_environment(host),
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
        return log

    def _wait_for(self, log, pattern):
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if found := pattern.search(log.read_text("utf-8", errors="replace")):
                    return found
            time.sleep(0.1)
        message = f"{log.name} does not say {pattern.pattern!r}:\n{log.read_text('utf-8')[-2000:]}"
        raise TimeoutError(message)
