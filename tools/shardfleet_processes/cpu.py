"""
The CPU of where a process runs, found as the KCL 3 finds it: its leader compares all workers by it.

In an ECS task it is that of the task, by its metadata (``EcsCpuWorkerMetric``); in a pod of
Kubernetes that of its cgroup, version 2 or 1 (``LinuxCgroupCpuWorkerMetric``); elsewhere that of
the host, by ``/proc/stat`` (``LinuxCpuWorkerMetric``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from shardfleet.domain.slots.usage import UNKNOWN, next_share
from shardfleet.engine.ports import Clock
from shardfleet.engine.shard.usage import CpuMeter

ECS_VARIABLE = "ECS_CONTAINER_METADATA_URI_V4"
KUBERNETES_VARIABLE = "KUBERNETES_SERVICE_HOST"
_TICKS_PER_S = 100  # USER_HZ, of what Linux tells programs (proc(5)).
_IDLE, _IOWAIT = 3, 4  # columns of /proc/stat behind the name
_GUEST = 8  # from here on time is told that others of the columns have
_ASKED_MOST_S = 0.5
_UNITS_PER_VCPU = 1_024

Ask = Callable[[str], Any]


class HostCpu:
    """The ``CpuMeter`` port on all of a host's CPUs."""

    def __init__(self, root: Path = Path("/")) -> None:
        """Read nothing yet; ``root`` is where the file systems are mounted."""
        self._file = root / "proc/stat"

    def used_ms(self) -> int:
        """Return how long all CPUs together would have been at work, milliseconds."""
        lines = self._file.read_text("ascii").splitlines()
        ticks = [int(each) for each in lines[0].split()[1 : 1 + _GUEST]]
        count = sum(line.startswith("cpu") for line in lines) - 1
        used = sum(ticks) - ticks[_IDLE] - ticks[_IOWAIT]
        return used * 1_000 // _TICKS_PER_S // max(1, count)


class CgroupCpu:
    """The ``CpuMeter`` port on what a container may have."""

    def __init__(self, root: Path = Path("/")) -> None:
        """Read what it may have; ``root`` is where the file systems are mounted."""
        place = root / "sys/fs/cgroup"
        self._has_v2 = (place / "cpu.stat").exists()
        if self._has_v2:
            self._file = place / "cpu.stat"
            quota, period = (place / "cpu.max").read_text("ascii").split()
            effective = place / "cpuset.cpus.effective"
        else:
            self._file = place / "cpu/cpuacct.usage"
            quota = (place / "cpu/cpu.cfs_quota_us").read_text("ascii").strip()
            period = (place / "cpu/cpu.cfs_period_us").read_text("ascii")
            effective = place / "cpuset/cpuset.effective_cpus"
        is_limited = quota not in ("max", "-1")
        self.vcpus = (
            int(quota) / int(period) if is_limited else _count(effective.read_text("ascii"))
        )

    def used_ms(self) -> int:
        """Return how long all that it may have was in use, milliseconds."""
        text = self._file.read_text("ascii")
        used_ms = int(text.split()[1]) / 1_000 if self._has_v2 else int(text) / 1_000_000
        return round(used_ms / self.vcpus)


class EcsCpu:
    """The ``CpuMeter`` port on an ECS task; while its agent is silent nothing seems to be used."""

    def __init__(self, uri: str, ask: Ask | None = None) -> None:
        """Ask what the task may have; without a limit of its own it is as its containers'."""
        self._uri = uri
        self._ask = ask or _asked
        task = self._ask(f"{uri}/task")
        own = task.get("Limits", {}).get("CPU")
        shares = sum(each.get("Limits", {}).get("CPU", 0) for each in task.get("Containers", ()))
        self._vcpus = own or shares / _UNITS_PER_VCPU or 1.0
        self._used_ms = 0

    def used_ms(self) -> int:
        """Return how long all that the task may have was in use, milliseconds."""
        try:
            stats: Mapping[str, Any] = self._ask(f"{self._uri}/task/stats")
        except OSError:
            return self._used_ms
        used_ns = sum(
            each["cpu_stats"]["cpu_usage"]["total_usage"] for each in stats.values() if each
        )
        self._used_ms = round(used_ns / 1_000_000 / self._vcpus)
        return self._used_ms


class Utilisation:
    """The moving average of what a meter tells, as the KCL's leader makes one of its workers'."""

    def __init__(self, meter: CpuMeter | None, clock: Clock) -> None:
        """Begin now; without a meter it stays unknown."""
        self._meter = meter
        self._clock = clock
        self._at_ms = clock.monotonic_ms()
        self._used_ms = meter.used_ms() if meter else 0
        self._share = UNKNOWN

    def now(self) -> int:
        """Return the average with what was used since the last look, thousandths; -1 unknown."""
        elapsed_ms = self._clock.monotonic_ms() - self._at_ms
        if self._meter is not None and elapsed_ms > 0:
            used_ms, self._used_ms = self._used_ms, self._meter.used_ms()
            self._at_ms += elapsed_ms
            self._share = next_share(
                self._share, used_ms=self._used_ms - used_ms, elapsed_ms=elapsed_ms
            )
        return self._share


def cpu_of(env: Mapping[str, str]) -> CpuMeter | None:
    """Return what tells the CPU of where this process runs; None where nothing does."""
    try:
        if uri := env.get(ECS_VARIABLE):
            return EcsCpu(uri)
        meter: CpuMeter = CgroupCpu() if KUBERNETES_VARIABLE in env else HostCpu()
        meter.used_ms()
    except (OSError, ValueError):
        return None
    return meter


def _asked(url: str) -> Any:
    with urlopen(url, timeout=_ASKED_MOST_S) as answer:  # noqa: S310 - ECS itself names it
        return json.load(answer)


def _count(text: str) -> int:
    """Return how many CPUs a list like ``0-3,7`` names."""
    ranges = [each.partition("-") for each in text.strip().split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)
