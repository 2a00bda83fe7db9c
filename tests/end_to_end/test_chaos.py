"""Chaos in short form: everything that can go wrong does, and nothing is lost."""

import pytest

from shardfleet_local.rig.outcome import chaos_options, result_of
from shardfleet_local.rig.run import run_rig
from tests.facts.table import all_operations

pytestmark = pytest.mark.processes


def test_a_short_chaos_loses_nothing_and_counts_what_it_did(tmp_path, seed):
    told = []
    options = chaos_options(minutes=0.35, records_per_minute=6_000, folder=tmp_path, seed=seed)

    outcome = run_rig(options, told.append)

    result = result_of(outcome)
    assert outcome.passed, "\n".join([*told, str(result)])
    assert result["records"] == result["records_handled_distinct"] == 2_100
    assert result["kills"] + result["freezes"] > 0
    assert result["reshards"] == 1
    assert result["injected_errors"] > 0
    assert result["calls"] > result["injected_errors"]
    # What really went over the wire is among what the table of operations knows.
    known = {name.partition(" ")[2] for name in all_operations()}
    assert set(result["injected_by_operation"]) <= known
