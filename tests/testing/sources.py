"""The sources of pages, by name: a new one is a module, and a line here."""

from shardfleet.engine.shard.polling import PolledSource
from shardfleet.engine.shard.pushing import PushedSource
from shardfleet_testkit.memory import MemoryEvents
from shardfleet_testkit.pushed_stream import MemoryConsumer
from tests.testing.toy_source import ToySource


def pushed(stream, clock, *, consumer=None, events=None):
    """Return a source that is pushed, and polls the same stream where that fails."""
    return PushedSource(
        consumer or MemoryConsumer(stream, clock),
        PolledSource(stream, clock),
        clock=clock,
        events=events or MemoryEvents(),
    )


SOURCES = {
    "polled": PolledSource,
    "pushed": pushed,
    "toy": ToySource,
}
"""Each takes a :class:`~shardfleet_testkit.memory_stream.MemoryStream` and a clock."""
