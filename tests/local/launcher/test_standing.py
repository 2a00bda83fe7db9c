"""A second `local up` finds the first, whose key lies in no file; an app's own assembly goes up."""

import socket
import threading
from pathlib import Path

import pytest

from shardfleet.errors import ConfigurationError
from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.aws.serving import serve
from shardfleet_local.aws.standing import Standing, lines_of
from shardfleet_ops.cli import app as application
from tests.local.launcher.conftest import write_assembly


def test_who_stands_there_is_heard_by_its_own_user_alone_and_only_as_long_as_it_stands(tmp_path):
    path = tmp_path / "s" / "up-1"

    with Standing(path, ["one", "two"]):
        assert lines_of(path) == lines_of(path) == ["one", "two"]
        assert path.parent.stat().st_mode & 0o077 == 0
    assert lines_of(path) == []
    assert not path.exists()


def test_a_socket_that_a_killed_one_left_is_nobody_and_is_taken_over(tmp_path):
    path = tmp_path / "up-1"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))

    assert lines_of(path) == []
    with Standing(path, ["mine"]):
        assert lines_of(path) == ["mine"]


def test_where_the_path_is_too_long_nobody_is_answered_and_nothing_fails(tmp_path):
    path = tmp_path / ("x" * 120)

    with Standing(path, ["one"]):
        assert lines_of(path) == []


def test_a_port_in_use_is_one_message():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port}: .*in use.* 0 for any"):
            EmbeddedAws(port=port).start()


def test_an_app_and_a_handler_at_once_are_refused(capsys):
    assert application.run(["local", "up", "--app", "cdk.out", "--handler", "a:b"]) == 2
    assert "--app cdk.out and --handler a:b" in capsys.readouterr().err


@pytest.mark.processes
def test_a_second_up_says_the_same_lines_and_ends_well(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write_assembly(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    said, ending = [], threading.Event()

    def say(line):
        said.append(line)
        if "Ctrl-C" in line:
            assert application.run(["local", "up", "--port", str(port)]) == 0
            ending.set()

    serve(
        EmbeddedAws(port=port),
        assembly=tmp_path,
        say=say,
        until=ending,
        standing_at=tmp_path / f"shardfleet/up-{port}",
    )

    first, *lines = capsys.readouterr().out.splitlines()
    assert "runs already" in first
    assert lines == said[:-1]
    assert f"export AWS_ENDPOINT_URL=http://127.0.0.1:{port}" in lines
    assert "export SHARDFLEET_STACK=S" in lines
    key = next(line.partition("=")[2] for line in lines if "SECRET" in line)
    files = [path for path in Path(tmp_path).rglob("*") if path.is_file()]
    assert not any(key in path.read_text() for path in files)
