"""The safety net itself: the network guard, the isolation of the environment, the seeds."""

import os
import re
import shutil
import socket
import subprocess
import sys

import boto3
import pytest

from tests import conftest
from tests.conftest import is_loopback

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


def failing_run(folder, *, seed):
    """Run pytest on one failing test that asks for a seed, and return what was printed."""
    shutil.copy(conftest.__file__, folder / "conftest.py")
    (folder / "test_red.py").write_text("def test_red(seed):\n    assert seed is None\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--seed={seed}", "."]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stdout + run.stderr
    return re.search(r"seed = (\d+); repeat with --seed=(\d+)", run.stdout).groups()


def test_a_failure_prints_the_seed_that_repeats_it(tmp_path):
    first = failing_run(tmp_path, seed=7)

    assert first[1] == "7"
    assert failing_run(tmp_path, seed=7) == first
    assert failing_run(tmp_path, seed=8)[0] != first[0]
