"""The sources of pages, by name: a new one is a module, and a line here."""

from shardfleet.engine.shard.polling import PolledSource
from shardfleet_testkit.pushed_stream import PushedStream
from tests.testing.toy_source import ToySource

SOURCES = {
    "polled": PolledSource,
    "pushed": PushedStream,
    "toy": ToySource,
}
"""Each takes a :class:`~shardfleet_testkit.memory_stream.MemoryStream` and a clock."""
