"""`shardfleet resume`: what is stopped is listed, and goes on when told to."""

import boto3
import pytest

from shardfleet_ops.cli import app as application
from shardfleet_ops.cli.app import EXIT_WRONG_INPUT
from shardfleet_ops.cli.approval import EXIT_NOT_DONE


@pytest.fixture
def stopped(fleet):
    """A fleet with two stopped shards."""
    for shard in ("shard-1", "shard-2"):
        body = {"position": "77:1", "error": "ValueError: x", "attempts": 5}
        fleet.put_document("stop", shard, body | {"worker_id": "w", "at_ms": 1})
    return fleet


def attempts(fleet):
    """Return what each stop counts, by shard; 0: it is over."""
    items = fleet.state.scan()["Items"]
    return {item["id"]: item["body"]["attempts"] for item in items if item["kind"] == "stop"}


def test_without_a_shard_it_lists_what_is_stopped_and_why(stopped, capsys):
    assert application.run(["resume"]) == 0

    out = capsys.readouterr().out
    assert "shard-1 is stopped at 77:1 after 5 attempts: ValueError: x" in out
    assert stopped.documents() == [("stop", "shard-1"), ("stop", "shard-2")]


def test_a_named_shard_goes_on_and_the_manager_is_prompted(stopped, capsys):
    assert application.run(["resume", "shard-1", "--yes"]) == 0

    assert "shard-1 goes on from 77:1" in capsys.readouterr().out
    assert attempts(stopped) == {"shard-1": 0, "shard-2": 5}
    assert ("prompt", "manager") in stopped.documents()


def test_all_leaves_nothing_stopped(stopped):
    assert application.run(["resume", "--all", "--yes"]) == 0

    assert attempts(stopped) == {"shard-1": 0, "shard-2": 0}
    assert ("prompt", "manager") in stopped.documents()


def test_without_a_region_it_is_one_message(monkeypatch, capsys):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)

    assert application.run(["resume"]) == EXIT_WRONG_INPUT
    assert "You must specify a region." in capsys.readouterr().err


def test_a_shard_that_is_not_stopped_changes_nothing(stopped, capsys):
    assert application.run(["resume", "shard-1", "shard-9"]) == EXIT_WRONG_INPUT

    assert "not stopped: shard-9; stopped are: shard-1, shard-2" in capsys.readouterr().err
    assert stopped.documents() == [("stop", "shard-1"), ("stop", "shard-2")]


def test_credentials_are_those_of_the_environment_now_not_of_an_earlier_session(monkeypatch):
    """A default session that exists keeps the first credentials it saw."""

    def refuse(*_, **__):
        message = "the default session was asked"
        raise AssertionError(message)

    monkeypatch.setattr(boto3, "client", refuse)
    monkeypatch.setattr(boto3.session.Session, "client", stack_without_a_fleet)

    assert application.run(["resume"]) == EXIT_WRONG_INPUT


def stack_without_a_fleet(_session, service):
    assert service == "cloudformation"

    class Client:
        def get_paginator(self, _):
            return self

        def paginate(self, **_):
            yield {"StackResourceSummaries": []}

    return Client()


@pytest.mark.parametrize("arguments", [["--all"], ["shard-1"], ["shard-1", "--json"]])
def test_what_was_asked_for_and_not_done_is_a_failure(stopped, capsys, arguments):
    assert application.run(["resume", *arguments]) == EXIT_NOT_DONE

    said = capsys.readouterr()
    assert "Nothing was changed; --yes does it." in said.out + said.err
    assert stopped.documents() == [("stop", "shard-1"), ("stop", "shard-2")]


def test_a_dry_run_does_what_it_was_asked_for(stopped, capsys):
    assert application.run(["resume", "--all", "--dry-run"]) == 0

    assert "shard-1 goes on from 77:1" in capsys.readouterr().out
    assert stopped.documents() == [("stop", "shard-1"), ("stop", "shard-2")]


def test_where_nothing_is_stopped_nothing_is_left_undone(fleet):
    assert application.run(["resume", "--all"]) == 0
