"""The shard list, read on the driver once in an interval; and where a new query begins."""

from __future__ import annotations

from shardfleet.domain.refusals import Doubt
from shardfleet.domain.stream.sequence import StreamIncarnation
from shardfleet.domain.stream.shards import ShardGraph
from shardfleet.errors import ConfigurationError, StreamReplaced, Throttled, settled
from shardfleet_spark.offsets.lineage import Family, Listing
from shardfleet_spark.options.starting import Start
from shardfleet_spark.plan.beginning import begin, common_start, opening_of
from shardfleet_spark.read.sealing import pause, persist
from shardfleet_spark.read.shard_pages import FetchPorts


class Discovery:
    """
    What the stream looks like.

    Attributes:
        listing: the newest one that makes sense, None before the first.
        incarnation: which life of which stream, None before the first listing.

    """

    def __init__(self, ports: FetchPorts, *, interval_ms: int, hurry_ms: int) -> None:
        """
        Ask nothing yet.

        Args:
            ports: the stream and the rest.
            interval_ms: how often the list is read.
            hurry_ms: how often it is read when a child waits for a parent that nobody knows.

        """
        self._ports = ports
        self._interval_ms = interval_ms
        self._hurry_ms = hurry_ms
        self._due_ms: int | None = None
        self._hurried_ms = 0
        self._is_urgent = False
        self._doubt = Doubt()
        self.listing: Listing | None = None
        self.incarnation: StreamIncarnation | None = None

    async def begin(self, start: Start) -> tuple[Family, StreamIncarnation]:
        """
        Return where a query without a checkpoint begins, and in which stream.

        Raises:
            ConfigurationError: the start position does not fit the stream.
            StreamGone: there is no such stream.
            Throttled: refused more often than the policy allows.

        """
        opening = opening_of(common_start(start))
        failures = 0
        while True:
            try:
                begun = await self._ports.stream.list_shards(
                    opening.listing, instant_ms=opening.instant_ms
                )
                await self._list()
            except Throttled as error:
                failures += 1
                await pause(self._ports, failures, error)
                continue
            if self.listing is not None and self.incarnation is not None:
                break
            failures += 1
            await pause(self._ports, failures, Throttled("ListShards shows no consistent list"))
        family = begin(
            start,
            self.listing.graph,
            [shard.shard_id for shard in begun],
            now_ms=self._ports.clock.now_ms(),
            incarnation=self.incarnation,
        )
        return family, self.incarnation

    @property
    def wait_ms(self) -> int:
        """Return when the list is to be read, for what was asked last: in so many milliseconds."""
        if self._due_ms is None:
            return 0
        due_ms = min(self._hurried_ms, self._due_ms) if self._is_urgent else self._due_ms
        return max(0, due_ms - self._ports.clock.monotonic_ms())

    async def refresh(self, expected: StreamIncarnation, *, urgent: bool) -> None:
        """
        Read the list if it is due.

        Args:
            expected: the stream that the query reads.
            urgent: whether a child waits for a parent that the list does not show.

        Raises:
            ConfigurationError: the checkpoint is one of another stream than the option names.
            StreamReplaced: it is another stream of the same name, and that stops the query.
            StreamGone: there is no such stream.

        """
        now_ms = self._ports.clock.monotonic_ms()
        self._is_urgent = urgent
        if not self.wait_ms:
            try:
                await self._list()
                self._doubt.clear()
            except Throttled as error:
                if self._doubt.believes(error, now_ms):
                    raise settled(error) from error
                # The list that is known serves; children wait a little longer.
                self._due_ms = self._hurried_ms = now_ms + self._ports.policy.max_retry_pause_ms
        if self.incarnation is None:
            # Nothing is read before it is known which stream this is.
            self.incarnation = await persist(self._ports.stream.incarnation, self._ports)
        if self.incarnation.stream_arn != expected.stream_arn:
            raise ConfigurationError(
                f"the checkpoint is one of {expected.stream_arn}, and the options lead to "
                f"{self.incarnation.stream_arn}, where its positions mean nothing: name the "
                "stream that it was, or begin with a new checkpoint location"
            )
        if self.incarnation != expected and self._ports.policy.fail_on_data_loss:
            raise StreamReplaced(
                f"{expected.stream_arn} was deleted and created again; positions of the old "
                "stream mean nothing. Begin with a new checkpoint location, or set "
                "failOnDataLoss=false to read the new stream from its beginning"
            )

    async def _list(self) -> None:
        at_ms = self._ports.clock.now_ms()
        self.incarnation = await self._ports.stream.incarnation()
        graph = ShardGraph(await self._ports.stream.list_shards())
        # Empty, or read in the middle of a reshard: it proves nothing (protocol.md §4.3).
        if graph.shards and not graph.inconsistent:
            self.listing = Listing(graph, at_ms)
        now_ms = self._ports.clock.monotonic_ms()
        self._due_ms = now_ms + self._interval_ms
        self._hurried_ms = now_ms + self._hurry_ms
