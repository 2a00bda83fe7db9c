"""Leases handed over under load, in real processes: the slice of benchmarks/bench_handover.py."""

import importlib
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_eight_handovers_under_load_repeat_nothing_and_lose_nothing(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    done = importlib.import_module("handovers").hand_over(8, shards=4, records_per_s=120)

    assert len(done.handovers) == 8
    assert done.delivered.sent > 0
    assert (done.delivered.lost, done.delivered.duplicates, done.delivered.foreign) == (0, 0, 0)
    assert done.forced == 0
