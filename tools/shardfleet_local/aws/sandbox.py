"""
One Lambda execution environment: a process that is frozen between invocations (hazard H10).

Lambda freezes a sandbox once it has replied and thaws it, threads and all, at its next invocation.
An emulator that leaves the process running hides every bug that comes of it, so here the process
group is stopped (SIGSTOP) before the reply is handed on, and continued at the next invocation.
"""

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from shardfleet_local.aws.lambda_logs import SandboxLog
from shardfleet_local.aws.settings import AwsBehaviour

BOOTSTRAP = Path(__file__).with_name("lambda_bootstrap.py")

POLL_WITHOUT_PIDFD_MS = 50  # ours
"""How often the process's life is looked at where the kernel cannot tell (macOS)."""

MEMORY_LOOK_MS = 100  # ours
"""How often a process's memory is looked at, so that a handler fills its own, not the machine's."""

KIB_PER_MB = 1024  # ours: a unit

LOG_MARK_WAIT_S = 2.0  # ours
"""Longest wait for an invocation's log to arrive in full; normally well below a millisecond."""

_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sandbox-spawner")
"""Starts every process: the kernel's death signal follows the *thread* that started a process."""


class ProcessGroup(subprocess.Popen[str]):
    """A process that leads a group of its own, and whose end is the end of the group."""

    def terminate(self) -> None:
        """Kill the whole group at once: a frozen process does not notice a polite signal."""
        self.kill()

    def kill(self) -> None:
        """Kill the whole group."""
        self.signal_group(signal.SIGKILL)

    def signal_group(self, number: int) -> None:
        """Signal every process of the group, if there is still one."""
        # Suppressed: the group has ended; on some systems a zombie may not be signalled.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How to start a sandbox's process: handler, folder, environment, import roots, and memory."""

    handler: str
    folder: Path
    environment: Mapping[str, str]
    search_path: list[str]
    memory_mb: int


@dataclass(frozen=True, kw_only=True)
class FunctionCall:
    """
    One event for the handler.

    `timeout_s` is the function's time-out; `variables` are set (or, with None, unset) in the
    process's environment before the handler runs.
    """

    event: Any
    request_id: str
    function_arn: str
    timeout_s: float
    variables: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A handler's answer: JSON text, or the error payload that Lambda would return."""

    result: str | None = None
    error: Mapping[str, Any] | None = None


def exit_error(request_id: str, returncode: int | None) -> dict[str, Any]:
    """Describe a process that ended before it replied, in Lambda's words (Runtime.ExitError)."""
    reason = "without providing a reason"
    if returncode is not None and returncode < 0:
        reason = f"with error: signal: {signal.strsignal(-returncode) or -returncode}".lower()
    elif returncode:
        reason = f"with error: exit status {returncode}"
    return {
        "errorType": "Runtime.ExitError",
        "errorMessage": f"RequestId: {request_id} Error: Runtime exited {reason}",
    }


def timeout_error(request_id: str, timeout_s: float) -> dict[str, Any]:
    """Describe an invocation that was cut off at the function's time-out (Sandbox.Timedout)."""
    return {
        "errorType": "Sandbox.Timedout",
        "errorMessage": f"RequestId: {request_id} Error: Task timed out after {timeout_s:.2f} "
        "seconds",
    }


class FunctionSandbox:
    """
    A process that serves one invocation at a time, and does not run in between.

    Not thread-safe: whoever leases it from the pool uses it alone.
    """

    def __init__(self, launch: Launch, log: SandboxLog, behaviour: AwsBehaviour) -> None:
        self._launch = launch
        self._log = log
        self._behaviour = behaviour
        self._rests_since_s: float | None = None
        self._marks: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._replies: IO[str] | None = None
        self._frozen = False
        self.process: ProcessGroup | None = None

    @property
    def alive(self) -> bool:
        """Whether there is a process that could serve an invocation."""
        return self.process is not None and self.process.poll() is None

    @property
    def frozen(self) -> bool:
        """Whether the process is stopped, waiting for its next invocation."""
        return self._frozen and self.alive

    def invoke(self, invocation: FunctionCall) -> Reply:
        """
        Run one invocation, starting or thawing the process, and freeze it again after the reply.

        A process that dies, exits, needs more than its memory (where the kernel tells how much
        that is: Linux) or outlives the time-out gives the error that Lambda gives, at once, and the
        next invocation starts a fresh one. An init that fails or takes too long runs again, as part
        of the invocation and within the function's time-out (fact L01).
        """
        deadline = time.monotonic() + invocation.timeout_s
        if not self.alive and not self._has_started():
            deadline = time.monotonic() + invocation.timeout_s
            failure = self._start(invocation, deadline)
            if failure is not None:
                return Reply(error=failure)
        silent = self._frozen and self._thaw()
        reply = self._exchange(invocation, deadline, silent=silent)
        if reply is None:
            return Reply(error=self._ended_early(invocation))
        self._wait_for_log(invocation.request_id)
        self._freeze()
        if reply["status"] == "ok":
            return Reply(result=reply["result"])
        return Reply(error=reply["error"])

    def stop(self) -> None:
        """Kill the process group and reap it."""
        process, self.process = self.process, None
        self._frozen = False
        self._rests_since_s = None
        if process is not None:
            process.kill()
            process.wait()
        if self._replies is not None:
            self._replies.close()
            self._replies = None

    def _has_started(self) -> bool:
        """Start the process ahead of its first invocation; False if its init fails or is slow."""
        began_s = time.monotonic()
        self._launch_process()
        reply = self._next_reply(began_s + self._behaviour.init_limit_s)
        if reply is not None and reply["status"] == "ready":
            return True
        assert self.process is not None
        status = "timeout" if reply is None and self.process.poll() is None else "error"
        self.stop()
        ms = (time.monotonic() - began_s) * 1000
        self._log.write(f"INIT_REPORT Init Duration: {ms:.2f} ms\tPhase: init\tStatus: {status}")
        return False

    def _start(self, invocation: FunctionCall, deadline: float) -> Mapping[str, Any] | None:
        """Start the process within an invocation; the error payload if its init fails."""
        self._launch_process()
        reply = self._next_reply(deadline)
        if reply is None:
            return self._ended_early(invocation)
        if reply["status"] == "ready":
            return None
        self.stop()
        error: Mapping[str, Any] = reply["error"]
        return error

    def _launch_process(self) -> None:
        self.stop()
        read, write = os.pipe()
        try:
            self.process = _SPAWNER.submit(self._spawn, write).result()
        finally:
            os.close(write)
        self._replies = os.fdopen(read, "r", encoding="utf-8")
        threading.Thread(
            target=self._log.follow, args=(self.process.stdout, self._marks.put), daemon=True
        ).start()

    def _spawn(self, reply_descriptor: int) -> ProcessGroup:
        own_path = self._launch.environment.get("PYTHONPATH")  # On AWS, too, it comes last.
        environment = {
            **self._launch.environment,
            "_HANDLER": self._launch.handler,
            "_SHARDFLEET_REPLY_FD": str(reply_descriptor),
            "_SHARDFLEET_SERVER_PID": str(os.getpid()),
            "PYTHONPATH": os.pathsep.join(
                [*self._launch.search_path, *([own_path] if own_path else [])]
            ),
        }
        return ProcessGroup(
            [sys.executable, "-P", "-u", str(BOOTSTRAP)],
            cwd=self._launch.folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            bufsize=1,
            pass_fds=(reply_descriptor,),
            process_group=0,
        )

    def _exchange(
        self, invocation: FunctionCall, deadline: float, *, silent: bool
    ) -> Mapping[str, Any] | None:
        """Send the event and wait for the reply; None if the process ended or was too slow."""
        assert self.process is not None
        assert self.process.stdin is not None
        message = {
            "event": invocation.event,
            "request_id": invocation.request_id,
            "function_arn": invocation.function_arn,
            "timeout_s": invocation.timeout_s,
            "variables": dict(invocation.variables),
            "silent": silent,
        }
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except OSError:  # A broken pipe: the process has just died.
            return None
        return self._next_reply(deadline)

    def _next_reply(self, deadline: float) -> Mapping[str, Any] | None:
        """Wait for one line from the process, for its end, or for the (monotonic) deadline."""
        assert self.process is not None
        assert self._replies is not None
        with _LifeWatch(self.process, memory_mb=self._launch.memory_mb) as life:
            readable = life.wait_for(self._replies.fileno(), deadline)
        line = self._replies.readline() if readable else ""
        reply: Mapping[str, Any] | None = json.loads(line) if line.endswith("\n") else None
        return reply

    def _ended_early(self, invocation: FunctionCall) -> dict[str, Any]:
        """Return the error of a process that died or was too slow, and leave none behind."""
        assert self.process is not None
        try:
            # A process whose pipe has closed is at its end: give the kernel a moment to say so.
            returncode: int | None = self.process.wait(timeout=0.05)
        except subprocess.TimeoutExpired:
            returncode = None
        too_slow = returncode is None
        self.stop()
        if too_slow:
            error = timeout_error(invocation.request_id, invocation.timeout_s)  # fact L20
        else:
            error = exit_error(invocation.request_id, returncode)  # fact L20
        self._log.write(str(error["errorMessage"]))
        return error

    def _wait_for_log(self, request_id: str) -> None:
        """Wait until the log of this invocation has arrived (its mark follows its last line)."""
        deadline = time.monotonic() + LOG_MARK_WAIT_S
        try:
            while self._marks.get(timeout=max(0.0, deadline - time.monotonic())) != request_id:
                pass
        except queue.Empty:
            pass  # User code closed or redirected its output; the log is what has arrived.

    def _freeze(self) -> None:
        """Stop the process group and wait until it is stopped (or ended)."""
        assert self.process is not None
        self.process.signal_group(signal.SIGSTOP)
        self._frozen = True
        self._rests_since_s = time.monotonic()
        if hasattr(os, "waitid"):
            states = os.WSTOPPED | os.WEXITED | os.WNOWAIT
            with contextlib.suppress(ChildProcessError):  # Reaped by a poll in another thread.
                os.waitid(os.P_PID, self.process.pid, states)

    def _thaw(self) -> bool:
        """Let the process run on, and say whether it rested so long that its connections died."""
        assert self.process is not None
        assert self._rests_since_s is not None
        self._frozen = False
        self.process.signal_group(signal.SIGCONT)
        return time.monotonic() - self._rests_since_s >= self._behaviour.silent_after_s


class _LifeWatch:
    """Waits for a descriptor to become readable while a process lives, in the memory it has."""

    def __init__(self, process: ProcessGroup, *, memory_mb: int) -> None:
        self._process = process
        self._most_kib = memory_mb * KIB_PER_MB
        self._pidfd: int | None = None
        open_pidfd: Callable[[int], int] | None = getattr(os, "pidfd_open", None)
        if open_pidfd is not None:
            try:
                self._pidfd = open_pidfd(process.pid)
            except OSError:
                self._pidfd = None  # Reaped already, or a kernel without it.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)

    def wait_for(self, descriptor: int, deadline: float) -> bool:
        """Return True once readable; False when the process ended first or the time is up."""
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if self._pidfd is not None:
            poll.register(self._pidfd, select.POLLIN)
        while True:
            look_ms = POLL_WITHOUT_PIDFD_MS if self._pidfd is None else MEMORY_LOOK_MS
            left_ms = max(0.0, deadline - time.monotonic()) * 1000
            events = dict(poll.poll(min(left_ms, look_ms)))
            if events.get(descriptor, 0) & select.POLLIN:
                return True  # Also if it has died since: what it replied counts.
            if events or self._process.poll() is not None or time.monotonic() >= deadline:
                return False
            if _own_kib(self._process.pid) > self._most_kib:
                self._process.kill()  # fact L27


def _own_kib(pid: int) -> int:
    """Return how much memory is a process's own, in KiB: what no file can give back; 0 unknown."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    except OSError:
        return 0  # It has ended, or no such kernel.
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
