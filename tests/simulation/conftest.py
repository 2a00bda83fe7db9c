"""A world in which nothing goes wrong."""

from dataclasses import fields

import pytest

from shardfleet_testkit.simulation.faults import FaultMix


@pytest.fixture
def mute_everything():
    return frozenset(kind.name for kind in fields(FaultMix))
