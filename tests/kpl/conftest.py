"""Small things that most tests of aggregated records need."""

import hashlib

import pytest

from shardfleet.kpl.deaggregate import ExpansionLimits, deaggregate


@pytest.fixture(scope="session")
def framed():
    """Return a function that puts a body, intact or not, into a valid frame."""

    def frame(body):
        return b"\xf3\x89\x9a\xc2" + body + hashlib.md5(body, usedforsecurity=False).digest()

    return frame


@pytest.fixture(scope="session")
def read():
    """Return ``deaggregate`` with the defaults of a fleet that knows no hash range."""

    def deaggregated(data, **changes):
        settings = {
            "partition_key": "outer",
            "limits": ExpansionLimits(),
            "hash_range": None,
            "policy": "deliver",
        }
        return deaggregate(data, **(settings | changes))

    return deaggregated
