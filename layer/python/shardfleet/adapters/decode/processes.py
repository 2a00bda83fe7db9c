"""
Processes that read and decode pages beside the worker's own: one per vCPU.

One interpreter uses one vCPU, and decoding in threads makes it slower (performance.md §4). Here the
call, TLS, JSON, base64 and the taking apart of aggregates happen in other processes, and what
remains is to receive a page and to make its records; the handler stays where it is. A connection
each, no queue: Lambda has no shared memory for semaphores.

A process that dies takes nothing with it but the answer it owed: the page was not accepted, so it
is read again, by another process or here. After a few deaths in a row no process is started any
more, since what kills one would then be decoded here, where a crash is noted (hazard H9).
"""

from __future__ import annotations

import logging
import os
import select
import socket
import subprocess
import sys
from dataclasses import field
from threading import Lock

import msgspec

from shardfleet.adapters.decode.server import READY, Served
from shardfleet.adapters.kinesis.page_messages import Asked, NotAnswered, answered, ask
from shardfleet.domain.reading.pages import RecordsPage
from shardfleet.errors import ShardfleetError, Throttled
from shardfleet.values import dataclass

DEATHS_MOST = 3
"""After so many deaths without a page in between, processes are no longer used."""

# Longer than a call takes to time out in the process (``aws_clients``): then it hangs.
_ANSWER_S = 20.0
_END_S = 5.0
_log = logging.getLogger("shardfleet.decoding")


@dataclass(eq=False, slots=True)
class _Lane:
    """One connection to a process: one page at a time."""

    process: _Process
    connection: socket.socket


@dataclass(eq=False, slots=True)
class _Process:
    """A process with its connections: not ready yet, free, and how many are in use."""

    running: subprocess.Popen[bytes]
    starting: list[_Lane] = field(default_factory=list)
    free: list[_Lane] = field(default_factory=list)
    busy: int = 0
    is_dead: bool = False


class DecodeProcesses:
    """
    A fixed number of processes, started when the first page is asked for; safe between threads.

    Args:
        count: processes, at least 1.
        lanes: pages that may be under way at once, in all processes.
        served: what they work on.

    """

    def __init__(self, count: int, *, lanes: int, served: Served) -> None:
        """Start none yet."""
        self._count = count
        self._lanes_each = -(-lanes // count)
        self._served = served
        self._processes: list[_Process] = []
        self._deaths = 0
        self._is_closed = False
        self._lock = Lock()

    @property
    def pids(self) -> list[int]:
        """Return the ids of the processes that run."""
        with self._lock:
            return [process.running.pid for process in self._processes]

    def page(self, asked: Asked) -> RecordsPage | None:
        """
        Have a page read and decoded; None if no process can: the caller has to do it.

        Raises:
            Throttled: the process died or hung, or the service said so; read again.
            ShardfleetError: as the process that read it.

        """
        lane = self._taken()
        if lane is None:
            return None
        try:
            ask(lane.connection, asked)
            page = answered(lane.connection)
        except NotAnswered:
            self._give_back(lane)
            return None
        except ShardfleetError:
            self._give_back(lane)
            raise
        except (OSError, msgspec.MsgspecError) as error:
            lane.connection.close()
            self._bury(lane.process, error)
            raise Throttled(f"a decoding process did not answer: {error!r}") from error
        self._deaths = 0
        self._give_back(lane)
        return page

    def close(self) -> None:
        """End the processes; a page under way is not answered any more."""
        with self._lock:
            self._is_closed = True
            processes, self._processes = self._processes, []
        for process in processes:
            _end(process)

    def _taken(self) -> _Lane | None:
        """Return a lane of the process with the least to do, None if there is none."""
        with self._lock:
            if self._is_closed or self._deaths >= DEATHS_MOST:
                return None
            while len(self._processes) < self._count:
                self._processes.append(self._started())
            for process in self._processes:
                _welcome(process)
            able = [process for process in self._processes if process.free]
            if not able:
                return None
            process = min(able, key=lambda each: each.busy)
            process.busy += 1
            return process.free.pop()

    def _give_back(self, lane: _Lane) -> None:
        with self._lock:
            process = lane.process
            process.busy -= 1
            if process.is_dead or self._is_closed:
                lane.connection.close()
            else:
                process.free.append(lane)

    def _bury(self, process: _Process, error: Exception) -> None:
        """Give a process up: all its pages under way fail; the next page starts another one."""
        with self._lock:
            if process.is_dead:
                return
            process.is_dead = True
            self._deaths += 1
            if process in self._processes:
                self._processes.remove(process)
            deaths = self._deaths
        pid = process.running.pid
        _end(process)
        goes_on = "decoding goes on in the worker" if deaths >= DEATHS_MOST else "another starts"
        _log.warning("decoding process %d ended (%r); %s", pid, error, goes_on)

    def _started(self) -> _Process:
        pairs = [socket.socketpair() for _ in range(self._lanes_each)]
        descriptors = tuple(theirs.fileno() for _, theirs in pairs)
        served = msgspec.structs.replace(self._served, descriptors=descriptors)
        try:
            running = subprocess.Popen(  # noqa: S603 - our own module, by this interpreter
                [
                    *(sys.executable, "-P", "-m", "shardfleet.adapters.decode.server"),
                    msgspec.json.encode(served).decode(),
                ],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=descriptors,
            )
        finally:
            for _, theirs in pairs:
                theirs.close()
        process = _Process(running)
        for ours, _ in pairs:
            ours.settimeout(_ANSWER_S)
            process.starting.append(_Lane(process, ours))
        return process


def _welcome(process: _Process) -> None:
    """Make free what has become ready; a process that died while it started shows by that, too."""
    if not process.starting:
        return
    poll = select.poll()
    for lane in process.starting:
        poll.register(lane.connection, select.POLLIN)
    ready = {descriptor for descriptor, _ in poll.poll(0)}
    for lane in [each for each in process.starting if each.connection.fileno() in ready]:
        process.starting.remove(lane)
        lane.connection.recv(len(READY))  # Nothing, if it died: the first page finds out.
        process.free.append(lane)


def _end(process: _Process) -> None:
    """Kill a process, which only ever reads, and take leave of it."""
    process.running.kill()
    for lane in (*process.starting, *process.free):
        lane.connection.close()
    process.running.wait(_END_S)
