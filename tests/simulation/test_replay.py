"""Replaying, shrinking, telling; the sums of many seeds; the command."""

import json
from dataclasses import replace

import pytest

from shardfleet.engine.shard.delivery import ShardDelivery
from shardfleet_ops.cli import app as application
from shardfleet_testkit.checkers import OrderWithinShard
from shardfleet_testkit.simulation import Options, run_seed, shrink, story
from shardfleet_testkit.simulation.campaign import campaign
from shardfleet_testkit.simulation.faults import FaultMix
from shardfleet_testkit.simulation.shapes import Shape


@pytest.fixture
def failing(monkeypatch):
    """A run that fails, because a failed batch is skipped; throttles have nothing to do with it."""

    async def after_failure(self, batch, lane, *, done, error):
        await lane.done(len(batch) - done, given_up=False)
        lane.attempts.handled()

    monkeypatch.setattr(ShardDelivery, "_after_failure", after_failure)
    mix = replace(FaultMix.none(), handler_raises=0.1, throttle=0.02, stale_read=0.1)
    return Options(seed=1, keeps_log=True, busy_s=60.0, checkers=(OrderWithinShard,), mix=mix)


def test_a_failing_run_is_shrunk_to_the_faults_that_it_takes(failing):
    told = []

    simpler = shrink(failing, told.append)

    assert run_seed(simpler).violations
    assert "handler_raises" not in simpler.muted
    assert {"throttle", "stale_read", "freeze"} <= simpler.muted
    assert told


def test_the_story_of_a_failing_run_fits_on_a_screen_and_ends_with_what_broke(failing):
    result = run_seed(failing)
    lines = story(result)

    assert 3 < len(lines) <= 40
    assert "VIOLATION OrderWithinShard" in "\n".join(lines)
    assert all(result.violations[0].subject in line or " world " in line for line in lines)


def test_a_replay_of_a_replay_is_the_same_run(failing):
    assert run_seed(failing) == run_seed(failing)


def test_a_campaign_adds_up_its_seeds_and_names_those_that_failed():
    results = []

    totals = campaign(
        iter([7, 24]), minutes=5, jobs=1, done=lambda result, _totals: results.append(result)
    )

    body = json.loads(json.dumps(totals.body()))
    assert body["seeds"] == len(results) == 2
    assert body["violations"] == []
    # Seed 7 has its lease table behind the real adapter: its calls are counted apart.
    counted = (body["wired"]["port_calls"], body["port_calls"])
    assert counted == tuple(sum(result.calls.values()) for result in results)
    assert body["reshards"] == sum(result.reshards for result in results)
    assert totals.line().endswith("0 violations")


def test_the_command_replays_a_seed(capsys, monkeypatch):
    real = Shape.drawn.__func__
    short = classmethod(lambda cls, chance, *, busy_s=None: real(cls, chance, busy_s=30.0))
    monkeypatch.setattr(Shape, "drawn", short)

    assert application.run(["simulate", "--seed", "7", "--log"]) == 0
    *log, last = capsys.readouterr().out.splitlines()
    assert len(log) > 500
    assert last.endswith("0 violations")


def test_the_command_names_the_faults_that_can_be_muted(capsys):
    arguments = ["simulate", "--seed", "1", "--mute", "earthquakes"]

    assert application.run(arguments) == application.EXIT_WRONG_INPUT
    message = capsys.readouterr().err
    assert "earthquakes" in message
    assert "handler_raises" in message
