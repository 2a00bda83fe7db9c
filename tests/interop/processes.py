"""
Processes beside Java, each in a task of its own whose CPU is what the leases in its hands take.

All run on this machine, whose CPU says nothing of any of them. So each is told what an ECS task
would tell it: half of the vCPUs are Java's, and a lease takes as much of one wherever it is read.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from shardfleet_processes.cpu import ECS_VARIABLE
from tests.interop.checker import FLEET, JAVA
from tests.interop.scene import APPLICATION, STREAM, Scene
from tests.processes.fleet import carried_by

# With 24 leases and four vCPUs the average is two fifths of what there is.
LEASE_VCPU, ONLINE_CPUS = 1 / 15, 4
VCPUS = {JAVA: 2.0, FLEET: 1.0}
POINTS, STOPS_S = 10, 60
_EACH_S = 0.5


class Tasks:
    """
    A server of the metadata of ECS tasks; a context.

    Args:
        leases: returns how many leases each task has in hand, by name.

    """

    def __init__(self, leases):
        self._leases = leases
        self._counts = Counter()
        self._used_s = Counter()
        self._over = threading.Event()
        tasks = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                body = json.dumps(tasks.answer(*self.path.strip("/").partition("/")[::2])).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._threads = [
            threading.Thread(target=target, daemon=True)
            for target in (self._server.serve_forever, self._use)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def at(self, name):
        """Return where a task of that name reads its own metadata."""
        return f"http://127.0.0.1:{self._server.server_port}/{name}"

    def _use(self):
        """Let the leases in hand take CPU."""
        before = time.monotonic()
        while not self._over.wait(_EACH_S):
            self._counts, now = self._leases(), time.monotonic()
            for name, count in self._counts.items():
                self._used_s[name] += count * LEASE_VCPU * (now - before)
            before = now

    def answer(self, name, what):
        """Answer as the task metadata endpoint does, version 4: of a task with one container."""
        side = JAVA if name.startswith(JAVA) else FLEET
        container = {"DockerId": name, "Limits": {"CPU": 1_024}}
        match what:
            case "":
                return container
            case "task":
                return {"Limits": {"CPU": VCPUS[side]}, "Containers": [container]}
            case "stats":
                return self._stats(name)
            case _:
                return {name: self._stats(name)}

    def _stats(self, name):
        used_s, now_s = self._used_s[name], time.monotonic()
        a_second_s = self._counts[name] * LEASE_VCPU
        return {
            "cpu_stats": _usage(used_s, now_s) | {"online_cpus": ONLINE_CPUS},
            "precpu_stats": _usage(used_s - a_second_s, now_s - 1),
        }


def _usage(used_s, at_s):
    return {
        "cpu_usage": {"total_usage": round(used_s * 1e9)},
        "system_cpu_usage": round(at_s * ONLINE_CPUS * 1e9),
    }


class ProcessScene(Scene):
    """A scene whose fleet is so many processes, kept running."""

    def _environment(self):
        (self._folder / "quiet.py").write_text("def handle(batch):\n    pass\n", "utf-8")
        self._running = []
        return {}

    def _cpu_at(self, stack):
        self._tasks = stack.enter_context(Tasks(self._in_hand))
        stack.callback(self._end_processes)
        return self._tasks.at

    def start_processes(self):
        while len(self._alive()) < self.version.processes:
            self._start()

    def _alive(self):
        return [each for each in self._running if each.poll() is None]

    def _start(self):
        task = f"process-{len(self._running) + 1}"
        environment = {**os.environ, **self.aws.environment(), ECS_VARIABLE: self._tasks.at(task)}
        environment |= self._ledger.environment("quiet:handle")
        script = Path(sys.executable).with_name("shardfleet")
        command = [sys.executable, script, "work", "--stream", STREAM, "--application", APPLICATION]
        with (self._folder / f"{task}.log").open("wb") as log:
            self._running.append(
                subprocess.Popen(
                    [*command, "--handler", "ledger_probe:handle", "--yes"],
                    cwd=self._folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def end_process(self):
        """Let one end in order, and start another."""
        process = self._alive()[0]
        self._ended(FLEET, self._workers_of(process.pid), is_kill=False)
        process.send_signal(signal.SIGTERM)
        process.wait(STOPS_S)
        self.start_processes()

    def kill_process(self):
        """Kill one, and start another."""
        process = self._alive()[0]
        self._ended(FLEET, self._workers_of(process.pid))
        process.kill()
        process.wait()
        self.start_processes()

    def _end_processes(self):
        for process in self._alive():
            process.kill()
            process.wait()

    # --- who has what

    def _carried(self):
        client = self.aws.client("dynamodb")
        with suppress(client.exceptions.ResourceNotFoundException):  # until one has begun
            return carried_by(client, APPLICATION)
        return {}

    def _workers_of(self, pid):
        return frozenset(worker for worker, by in self._carried().items() if by == pid)

    def _in_hand(self):
        """Return how many leases each task reads."""
        tasks = {each.pid: f"process-{number}" for number, each in enumerate(self._running, 1)}
        carried = {worker: tasks.get(pid) for worker, pid in self._carried().items()}
        return Counter(carried.get(owner, owner) for owner in self.owners().values())

    def shares_by_cpu(self):
        """Return each living task's percentage of the leases, and of the vCPUs."""
        found, total = self._in_hand(), len(self.owners())
        names = [*self.java.living, *self._tasks_alive()]
        vcpus = {name: VCPUS[JAVA if name in self.java.living else FLEET] for name in names}
        return {
            name: (round(100 * found[name] / total), round(100 * mine / sum(vcpus.values())))
            for name, mine in vcpus.items()
        }

    def _tasks_alive(self):
        return [f"process-{n}" for n, it in enumerate(self._running, 1) if it.poll() is None]

    def is_shared_by_cpu(self):
        shares = self.shares_by_cpu()
        is_all = sum(self._in_hand()[name] for name in shares) == self.shards
        return is_all and all(abs(leases - cpu) <= POINTS for leases, cpu in shares.values())

    def rows(self):
        """Return what rows of living workers have: names of metrics, of ranges, and the ranges."""
        client = self.aws.client("dynamodb")
        tables = {APPLICATION, f"{APPLICATION}-WorkerMetricStats"}
        items = [
            item
            for table in tables & set(client.list_tables()["TableNames"])
            for item in client.scan(TableName=table)["Items"]
            if "lut" in item
        ]
        names = {*self.java.living, *self._carried()}
        return {
            who: (
                [*item["sts"]["M"]],
                [*item["opr"]["M"]],
                [float(each["N"]) for each in item["opr"]["M"].get("C", {"L": []})["L"]],
            )
            for item in items
            if (who := item.get("wid", item.get("leaseKey"))["S"]) in names
        }
