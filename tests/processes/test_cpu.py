"""The CPU of a host, a container and an ECS task, from what each of them says of itself."""

from types import SimpleNamespace

import pytest

from shardfleet_processes.cpu import CgroupCpu, EcsCpu, HostCpu, Utilisation, cpu_of

# user, nice, system, idle, iowait, irq, softirq, steal, and what guests had of user.
STAT = """cpu  300 100 200 5000 400 50 50 100 250 0
cpu0 150 50 100 2500 200 25 25 50 125 0
cpu1 150 50 100 2500 200 25 25 50 125 0
intr 1
"""


def made(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "ascii")
    return root


def test_of_a_host_everything_but_idling_and_waiting_counts_on_all_its_cpus(tmp_path):
    """8 s of work, in ticks of a hundredth, on two CPUs: as 4 s of both."""
    assert HostCpu(made(tmp_path, {"proc/stat": STAT})).used_ms() == 4_000


V2 = {
    "sys/fs/cgroup/cpu.stat": "usage_usec 3000000\nuser_usec 1\n",
    "sys/fs/cgroup/cpu.max": "150000 100000\n",
    "sys/fs/cgroup/cpuset.cpus.effective": "0-2,5\n",
}
V1 = {
    "sys/fs/cgroup/cpu/cpuacct.usage": "3000000000\n",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpuset/cpuset.effective_cpus": "0-2,5\n",
}


@pytest.mark.parametrize("files", [V2, V1], ids=["v2", "v1"])
def test_a_container_may_have_its_quota(tmp_path, files):
    """3 s of 1.5 CPUs."""
    assert CgroupCpu(made(tmp_path, files)).used_ms() == 2_000


@pytest.mark.parametrize(
    ("files", "name", "text"),
    [(V2, "cpu.max", "max 100000\n"), (V1, "cpu/cpu.cfs_quota_us", "-1\n")],
    ids=["v2", "v1"],
)
def test_a_container_without_a_quota_may_have_the_cpus_of_its_set(tmp_path, files, name, text):
    """3 s of four CPUs."""
    found = CgroupCpu(made(tmp_path, {**files, f"sys/fs/cgroup/{name}": text}))
    assert (found.vcpus, found.used_ms()) == (4, 750)


def agent(limits, *used_ns, containers=()):
    answers = {
        "http://agent/v4/task": {"Limits": limits, "Containers": containers},
        "http://agent/v4/task/stats": {
            str(number): {"cpu_stats": {"cpu_usage": {"total_usage": each}}}
            for number, each in enumerate(used_ns)
        },
    }
    return answers.__getitem__


def test_a_task_of_ecs_may_have_its_limit_and_its_containers_use_it_together():
    assert EcsCpu("http://agent/v4", agent({"CPU": 0.5}, 10**9, 2 * 10**9)).used_ms() == 6_000


def test_a_task_without_a_limit_may_have_its_containers():
    containers = [{"Limits": {"CPU": 512}}, {"Limits": {"CPU": 1_536}}]
    ask = agent({}, 4 * 10**9, containers=containers)
    assert EcsCpu("http://agent/v4", ask).used_ms() == 2_000


def test_while_the_agent_is_silent_nothing_more_seems_to_be_used():
    ask = agent({"CPU": 1}, 10**9)
    silent = []

    def asked(url):
        if silent and url.endswith("stats"):
            raise TimeoutError
        return ask(url)

    meter = EcsCpu("http://agent/v4", asked)
    first_ms = meter.used_ms()
    silent.append(True)
    assert (first_ms, meter.used_ms()) == (1_000, 1_000)


def test_a_machine_that_tells_nothing_has_no_meter(monkeypatch, tmp_path):
    monkeypatch.setattr(HostCpu.__init__, "__defaults__", (tmp_path,))
    assert cpu_of({}) is None


def test_utilisation_is_averaged_as_the_kcl_averages_it():
    """Half of what is new, half of what was: 0.4, then (0.4 + 0.8) / 2."""
    used, clock = [0, 400, 1_200], SimpleNamespace(monotonic_ms=iter((0, 1_000, 2_000)).__next__)
    meter = SimpleNamespace(used_ms=iter(used).__next__)
    utilisation = Utilisation(meter, clock)
    assert [utilisation.now(), utilisation.now()] == [400, 600]


def test_without_a_meter_it_is_unknown():
    clock = SimpleNamespace(monotonic_ms=iter((0, 1_000)).__next__)
    assert Utilisation(None, clock).now() == -1
