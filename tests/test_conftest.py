"""The safety net itself: the network guard, the isolated environment, the seeds, the skips."""

import ast
import gc
import os
import re
import shutil
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import boto3
import pytest

from tests import conftest
from tests.conftest import is_loopback, permitted_skips, shared_by

# TEST-NET-1 (RFC 5737): an address that belongs to nobody.
ELSEWHERE = ("192.0.2.1", 9)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost", None, ""])
def test_loopback_hosts_are_allowed(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["192.0.2.1", "10.0.0.1", "example.com", "169.254.169.254"])
def test_other_hosts_are_not_loopback(host):
    assert not is_loopback(host)


def test_a_connection_to_another_machine_is_refused_before_a_packet_leaves():
    with socket.socket() as client, pytest.raises(RuntimeError, match="loopback"):
        client.connect(ELSEWHERE)


def test_a_datagram_to_another_machine_is_refused():
    with (
        socket.socket(type=socket.SOCK_DGRAM) as client,
        pytest.raises(RuntimeError, match="loopback"),
    ):
        client.sendto(b"hello", ELSEWHERE)


def test_a_name_elsewhere_is_not_even_looked_up():
    with pytest.raises(RuntimeError, match=r"example\.com"):
        socket.getaddrinfo("example.com", 443)


def test_a_server_on_loopback_can_be_reached():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        client.sendall(b"x")
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1) == b"x"


def test_boto3_sees_only_the_fake_credentials():
    credentials = boto3.Session().get_credentials()

    assert credentials.access_key == "testing"
    assert boto3.Session().region_name == os.environ["AWS_REGION"]


def run_pytest(folder, *arguments, **environment):
    """Run pytest on a folder that has our conftest, and return what was printed."""
    shutil.copy(conftest.__file__, folder / "conftest.py")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-ra", *arguments, "."]
    clean = {name: text for name, text in os.environ.items() if name != "CI"}
    return subprocess.run(
        command, cwd=folder, env=clean | environment, capture_output=True, text=True, check=False
    )


def failing_run(folder, *, seed):
    """Run one failing test that asks for a seed, and return the two seeds that were printed."""
    (folder / "test_red.py").write_text("def test_red(seed):\n    assert seed is None\n")
    run = run_pytest(folder, f"--seed={seed}")
    assert run.returncode == 1, run.stdout + run.stderr
    return re.search(r"seed = (\d+); repeat with --seed=(\d+)", run.stdout).groups()


def test_a_failure_prints_the_seed_that_repeats_it(tmp_path):
    first = failing_run(tmp_path, seed=7)

    assert first[1] == "7"
    assert failing_run(tmp_path, seed=7) == first
    assert failing_run(tmp_path, seed=8)[0] != first[0]


def test_those_who_share_a_node_run_in_one_process_and_others_file_by_file(tmp_path):
    for file in ("tests/a/test_a.py", "tests/cdk/test_b.py", "tests/test_readme.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("def test_it():\n    pass\n")

    run = run_pytest(tmp_path, "-v", "-n", "2", "--dist", "loadfile", "--rootdir", ".")

    ran = {file: gw for gw, file in re.findall(r"\[(gw\d)\].* PASSED (\S+)::", run.stdout)}
    assert len(ran) == 3, run.stdout + run.stderr
    assert ran["tests/cdk/test_b.py"] == ran["tests/test_readme.py"] != ran["tests/a/test_a.py"]


@pytest.mark.parametrize("before", [0, 4, 19])
def test_a_process_makes_way_once_it_runs_what_waits_for_no_fleet(monkeypatch, before):
    niceness = [before]

    def nice(more):
        assert more >= 0  # Less is root's alone.
        niceness[0] += more
        return niceness[0]

    monkeypatch.setattr(os, "nice", nice)
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    conftest.pytest_runtest_logstart("tests/end_to_end/c.py::c")
    assert niceness == [before]
    for name in ("tests/simulation/d.py::d", "tests/a.py::a"):
        conftest.pytest_runtest_logstart(name)
        assert niceness == [max(before, conftest.MAKES_WAY_BY)]
    monkeypatch.delenv("PYTEST_XDIST_WORKER")
    niceness[0] = 0
    conftest.pytest_runtest_logstart("tests/a.py::a")
    assert niceness == [0]


def test_what_is_shared_comes_first_then_what_is_long_and_else_the_order_stays():
    names = ["tests/a.py::z", "tests/a.py::a", "tests/end_to_end/c.py::c", "tests/cdk/b.py::b"]
    names.append("tests/simulation/d.py::d")
    items = [SimpleNamespace(nodeid=name) for name in names]

    conftest.pytest_collection_modifyitems(items)

    assert [item.nodeid for item in items] == [*reversed(names[2:4]), names[4], *names[:2]]


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("tests/spark/kills/test_kills.py", "Java"),
        ("tests/cdk/test_mistakes.py", "Node"),
        ("tests/end_to_end/test_demo.py", "whole runs"),
        ("tests/end_to_end/test_cli.py", "fleets"),
        ("tests/end_to_end/test_random_kills.py", "killed fleets"),
        ("tests/kpl/test_filling.py", "tests/kpl/test_filling.py"),
    ],
)
def test_a_file_belongs_to_what_it_shares(file, what):
    assert shared_by(file) == what


def test_whoever_shares_something_or_is_long_is_there():
    root = Path(conftest.__file__).parents[1]
    prefixes = [prefix for files in (*conftest.SHARED.values(), conftest.LONG) for prefix in files]

    assert [prefix for prefix in prefixes if not [*root.glob(f"{prefix}*")]] == []


SKIPPED = """
import pytest

@pytest.mark.skip(reason="no browser here")
def test_marked():
    pass

def test_told():
    pytest.skip("no Java here")

@pytest.mark.xfail(reason="an endpoint that does otherwise", strict=True)
def test_expected():
    assert False
"""
PERMITTED = """
[[skip]]
tests = "test_some.py"
reason = "no browser here"
[[skip]]
tests = "test_other.py"
reason = "no Java here"
"""


def test_where_ci_is_set_a_skip_that_is_not_named_fails(tmp_path):
    (tmp_path / "test_some.py").write_text(SKIPPED)
    (tmp_path / "test_module.py").write_text("import pytest\npytest.importorskip('nowhere')\n")
    (tmp_path / "skips.toml").write_text(PERMITTED)

    here = run_pytest(tmp_path)
    there = run_pytest(tmp_path, "--continue-on-collection-errors", CI="true")

    assert "3 skipped, 1 xfailed" in here.stdout
    assert here.returncode == 0
    assert "1 failed, 1 skipped, 1 xfailed, 1 error" in there.stdout
    assert "skips.toml does not permit this skip: no Java here" in there.stdout
    assert "skips.toml does not permit this skip: could not import 'nowhere'" in there.stdout
    assert there.returncode == 1


@pytest.mark.parametrize(("tests", "reason"), permitted_skips())
def test_a_permitted_skip_is_one_that_these_tests_have(tests, reason):
    place = Path(conftest.__file__).parents[1] / tests
    files = [place] if place.is_file() else place.rglob("*.py")

    assert any(reason in file.read_text("utf-8") for file in files)


def test_collecting_the_tests_starts_no_node():
    """Importing the CDK does, in each of the processes; a fixture or a test imports it."""
    cdk = re.compile(r"(from|import) (aws_cdk|cdk_nag|jsii|shardfleet_cdk|tests\.cdk.*variants)\b")
    folder = Path(__file__).parent
    texts = {
        file: file.read_text("utf-8")
        for name in ("test_*.py", "conftest.py")
        for file in folder.rglob(name)
    }
    found = {
        file
        for file, text in texts.items()
        if cdk.search(text)
        for line in ast.parse(text).body
        if isinstance(line, ast.Import | ast.ImportFrom) and cdk.match(ast.unparse(line))
    }

    assert texts
    assert found == set()


def test_what_is_collected_while_python_parses_may_have_its_traceback_written():
    class Left:
        def __init__(self):
            self.itself = self

        def __del__(self):
            try:
                len(1) + 1
            except TypeError:
                written.append(traceback.format_exc())

    written, source = [], Path(__file__).read_text("utf-8")
    before = gc.get_threshold()
    gc.set_threshold(50, 1, 1)
    try:
        for _ in range(20):
            Left()
            ast.parse(source)
    finally:
        gc.set_threshold(*before)
    assert written
