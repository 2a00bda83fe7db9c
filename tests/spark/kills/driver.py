"""The driver's process as the kill suite sees it: started, killed, started again, and its kin."""

import json
import subprocess
import sys
import time
from pathlib import Path

from tests.spark.conftest import SETTINGS
from tests.spark.kills import processes, program
from tests.spark.kills.cluster import spark_environment

ROOT = Path(__file__).resolve().parents[3]
LOCAL = "local[2,12]"
END_LIMIT_S = 60

SPARK = SETTINGS | {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
    "spark.driver.memory": "700m",
    "spark.executor.memory": "600m",
    "spark.executor.cores": "2",
    "spark.task.maxFailures": "12",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    # Copies are wanted, not saved: any task of more than this gets one.
    "spark.speculation.task.duration.threshold": "900ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.efficiency.enabled": "false",
    # Without compaction the file sink's log says which batch wrote a file.
    "spark.sql.streaming.fileSink.log.compactInterval": "100000",
}


class Driver:
    """
    The one driver of a lane of runs, as a context manager.

    Args:
        folder: of the runs; it is made.
        cluster: where the tasks run; None: in the driver itself.

    Attributes:
        count: drivers started so far.

    """

    def __init__(self, folder, cluster=None):
        self.folder = folder
        self.master = cluster.url if cluster else LOCAL
        self._cluster = cluster
        self._started = []

    @property
    def events(self):
        """Folder of Spark's event logs."""
        return self.folder / "events"

    @property
    def count(self):
        return len(self._started)

    def __enter__(self):
        self.events.mkdir(parents=True)
        settings = {
            "master": self.master,
            "spark": SPARK
            | {
                # Spark draws the secret of a session of its own; a cluster's would have to be given
                # to master, workers and drivers alike.
                "spark.authenticate": "true" if self.master == LOCAL else "false",
                "spark.eventLog.dir": self.events.as_uri(),
                "spark.local.dir": str(self.folder / "local"),
                "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            },
        }
        (self.folder / "settings.json").write_text(json.dumps(settings), "utf-8")
        self.start()
        return self

    def __exit__(self, *_):
        """Let it leave, so that its event log is whole; then see that nothing is left."""
        (self.folder / program.STOP).touch()
        deadline = time.monotonic() + END_LIMIT_S
        while self._started[-1].poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        processes.end({driver.pid for driver in self._started})
        for driver in self._started:
            driver.wait()

    def start(self):
        """Start one, after the last one was killed."""
        with (self.folder / f"driver-{self.count}.log").open("wb") as output:
            self._started.append(
                subprocess.Popen(
                    [sys.executable, "-m", program.__name__, str(self.folder)],
                    cwd=ROOT,
                    env=spark_environment("127.0.0.1"),
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )

    def kill_program(self):
        """Kill the Python program too, whose JVM was killed."""
        self._started[-1].kill()
        self._started[-1].wait()

    def processes(self, role):
        """Return the living processes of a role, executors of the cluster included."""
        sessions = {driver.pid for driver in self._started}
        if self._cluster:
            sessions |= self._cluster.sessions
        return [process for process in processes.of_sessions(sessions) if process.role == role]

    def check(self, deadline, complaint):
        """Raise if it has ended, or if it is late with something."""
        if self._started[-1].poll() is None and time.monotonic() < deadline:
            return
        ended = self._started[-1].poll()
        complaint = complaint if ended is None else f"ended with {ended}"
        log = self.folder / f"driver-{self.count - 1}.log"
        raise TimeoutError(f"the driver {complaint}:\n{log.read_text('utf-8')[-3000:]}")
