"""`shardfleet simulate --rates --seeds`: faults as often as asked for, so many seeds."""

import json

import pytest

from shardfleet_ops.cli import app as application
from shardfleet_ops.cli.app import EXIT_WRONG_INPUT
from shardfleet_testkit.simulation import Options, run_seed
from shardfleet_testkit.simulation.faults import FaultMix, rates_checked


def test_a_kind_that_is_given_a_rate_has_it_whatever_was_drawn():
    calm = Options(seed=1, is_small=True, mix=FaultMix.none(), busy_s=30.0)

    assert not run_seed(calm).faults
    rated = Options(seed=1, is_small=True, mix=FaultMix.none(), rates={"false_gone": 0.1})
    assert run_seed(rated).faults.keys() == {"false_gone"}


@pytest.mark.parametrize("text", ["false_gone", "false_gone=often", "false_gone=1.5", "gone=0.1"])
def test_what_is_no_rate_is_refused(text, capsys):
    assert application.run(["simulate", "--seeds", "1", "--rates", text]) == EXIT_WRONG_INPUT
    assert text.partition("=")[0] in capsys.readouterr().err


def test_rates_are_read():
    assert rates_checked("false_gone=0.03,stale_listing=0.2") == {
        "false_gone": 0.03,
        "stale_listing": 0.2,
    }


@pytest.mark.processes
def test_so_many_seeds_are_run_whatever_the_time(tmp_path):
    given = ["--seeds", "1", "--minutes", "0", "--first-seed", "7"]
    sums = tmp_path / "sums.json"
    sums.write_text('{"seeds": 9, "before": {"port_calls_per_core_s": 8602}}')

    assert application.run(["simulate", *given, "--output", str(sums)]) == 0
    found = json.loads(sums.read_text())
    assert (found["seeds"], found["first_seed"]) == (1, 7)
    assert found["before"] == {"port_calls_per_core_s": 8602}, "what it is beside outlives it"
