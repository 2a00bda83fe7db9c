"""
Carrying a query's publication out: owning leases, writing each in every round, telling a loss.

Each write is conditional on the counter as this process last saw it (protocol.md §1.6), so of two
processes of one query, or of a query and another consumer, only one goes on; the other one's query
fails with a message that names who has the lease (hazard H5). What fails for a moment (a throttled
table, an answer that never came) is tried again in the next round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardfleet.domain.leases.changes import create, delete, take
from shardfleet.domain.leases.cleanup import plan_lease_cleanup
from shardfleet.domain.leases.lease import Applied, ChangeKind, Gone, Lease, LeaseChange, Lost
from shardfleet.domain.refusals import Doubt
from shardfleet.engine.ports import Clock, LeaseStore
from shardfleet.errors import OutcomeUnknown, ShardfleetError, Throttled, settled
from shardfleet_spark.offsets.lineage import CommittedStanding
from shardfleet_spark.publish.publication import (
    finishing,
    giving_up,
    leases_to_create,
    live,
    needed,
    next_change,
)
from shardfleet_spark.read.fetching import together

# KCL's failover time is 10 s by default; whoever renews nothing for twice that is not there.
TAKEN_AFTER_MS = 20_000
_LOOK_EVERY_MS = 1_000
_AGAIN_MS = 200
# A former run of the query may still write while it ends.
_TAKES_MOST = 10
# Hash range, children, checkpoint: no lease needs more writes in one round.
_WRITES_MOST = 3


class LeaseTaken(ShardfleetError):
    """Somebody else has, or had meanwhile, a lease that the query publishes to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """
    Where a query publishes.

    Attributes:
        application: the KCL application, which is the name of its lease table.
        owner: the query's name in its leases.

    """

    application: str
    owner: str


class Publisher:
    """
    The leases of one query; not for concurrent use.

    Attributes:
        leases: by key, as this process knows them.
        trouble: what went wrong in the last round, for a person; empty for nothing.

    """

    def __init__(self, store: LeaseStore, clock: Clock, publication: Publication) -> None:
        """Own nothing yet."""
        self._store = store
        self._clock = clock
        self._to = publication
        self._unsure: set[str] = set()
        self._doubt = Doubt()
        self.leases: dict[str, Lease] = {}
        self.trouble = ""

    async def begin(self, standing: CommittedStanding) -> None:
        """
        Own every lease of the shards that are read, before the first record of them is.

        Leases of a former run of this query, and those of nobody, are taken at once; those of
        others when they have not been renewed for :data:`TAKEN_AFTER_MS`.

        Raises:
            LeaseTaken: somebody else renews them.
            ConfigurationError, MalformedLease, Throttled, OutcomeUnknown: see the messages.

        """
        self.leases = {lease.lease_key: lease for lease in await self._store.scan()}
        wanted = {lease.lease_key for lease in needed(standing, self.leases)}
        wanted |= {key for key, lease in self.leases.items() if self._is_mine(lease)}
        wanted -= {key for key, lease in self.leases.items() if lease.is_finished}
        foreign = [
            self.leases[key]
            for key in sorted(wanted)
            if self.leases[key].effective_owner not in (None, self._to.owner)
        ]
        if foreign:
            await self._outlast(foreign)
        await together(self._take(self.leases[key]) for key in sorted(wanted))
        await self._create(standing)

    async def publish(self, standing: CommittedStanding) -> None:
        """
        Write every lease once: a checkpoint where the position has moved, else a renewal.

        Raises:
            LeaseTaken: a lease is another's now.
            ConfigurationError, MalformedLease: see the messages.

        """
        self.trouble = ""
        await self._settle()
        await self._create(standing)
        ending = {lease.lease_key for lease in finishing(standing, self.leases)}
        mine = [lease for key, lease in sorted(self.leases.items()) if self._may_write(lease)]
        await together(
            self._write(each, standing, may_end=each.lease_key in ending) for each in mine
        )
        await self._clean_up(standing)

    async def release(self) -> None:
        """
        Give all leases up, so that another consumer need not wait for them to expire.

        A write that fails is repeated; the caller sets the limit.
        """
        held = {each.lease_key for each in self.leases.values() if self._is_mine(each)}
        while held:
            await self._settle()
            for key in sorted(held):
                lease = self.leases.get(key)
                if lease is None or lease.is_finished or await self._given_up(lease):
                    held.discard(key)
            if held:
                await self._clock.sleep_ms(_AGAIN_MS)

    # --- inside

    def _is_mine(self, lease: Lease) -> bool:
        return lease.lease_owner == self._to.owner

    def _may_write(self, lease: Lease) -> bool:
        sure = lease.lease_key not in self._unsure
        return sure and self._is_mine(lease) and not lease.is_finished

    async def _given_up(self, lease: Lease) -> bool:
        """Try to give a lease up; tell whether this query has it no more."""
        if lease.lease_key in self._unsure:
            return False
        try:
            await self._store.apply(giving_up(lease))
        except Throttled:
            return False
        except OutcomeUnknown:
            current = await self._store.get(lease.lease_key)
            return current is None or current.lease_counter != lease.lease_counter
        # Lost: who has written it meanwhile has it, the next run of this query most of all.
        return True

    async def _outlast(self, foreign: Iterable[Lease]) -> None:
        """Wait until nobody can be alive who owns these leases."""
        until_ms = self._clock.monotonic_ms() + TAKEN_AFTER_MS
        while True:
            for lease in foreign:
                current = await self._store.get(lease.lease_key)
                if current is not None and current.lease_counter != lease.lease_counter:
                    raise self._taken(current, "renews it")
            if self._clock.monotonic_ms() >= until_ms:
                return
            await self._clock.sleep_ms(_LOOK_EVERY_MS)

    async def _take(self, lease: Lease) -> None:
        for _ in range(_TAKES_MOST):
            try:
                result = await self._store.apply(take(lease, self._to.owner))
            except OutcomeUnknown:
                # Taken again by the counter it has now, whether or not it was taken.
                current = await self._store.get(lease.lease_key)
                result = Gone() if current is None else Lost(current, ())
            match result:
                case Applied(taken):
                    self.leases[lease.lease_key] = taken
                    return
                case Lost(lease) if lease.effective_owner not in (None, self._to.owner):
                    break
                case Lost(lease):
                    continue  # The last word of a former run, which is ending.
                case Gone():
                    self.leases.pop(lease.lease_key, None)
                    return
        raise self._taken(lease, "has just taken it")

    async def _create(self, standing: CommittedStanding) -> None:
        wanted = leases_to_create(standing, self.leases, owner=self._to.owner)
        await together(self._apply(create(each)) for each in wanted if not each.is_finished)
        for lease in wanted:
            if lease.is_finished and all(child in self.leases for child in lease.child_shard_ids):
                await self._apply(create(lease))

    async def _settle(self) -> None:
        """Find out what became of writes whose answers never came."""
        for key in sorted(self._unsure):
            known = self.leases.get(key)
            try:
                current = await self._store.get(key)
            except (Throttled, OutcomeUnknown) as error:
                self.trouble = str(error)
                continue
            if current is None:
                self.leases.pop(key, None)
            elif not self._is_mine(current) and not current.is_finished:
                raise self._taken(current, "has it now")
            elif known and current.lease_counter > known.lease_counter + 1:
                raise self._taken(current, "has written it meanwhile")
            else:
                self.leases[key] = current
            self._unsure.discard(key)

    async def _write(self, lease: Lease, standing: CommittedStanding, *, may_end: bool) -> None:
        current: Lease | None = lease
        for _ in range(_WRITES_MOST):
            if current is None:
                return
            change = next_change(current, standing, may_end=may_end)
            current = await self._apply(change)
            if current is None or current.lease_counter != lease.lease_counter:
                return

    async def _apply(self, change: LeaseChange) -> Lease | None:
        """Make one write; None when its outcome must be awaited or the lease is gone."""
        key = change.lease_key
        try:
            result = await self._store.apply(change)
            self._doubt.clear()
        except Throttled as error:
            if self._doubt.believes(error, self._clock.monotonic_ms()):
                raise settled(error) from error
            self.trouble = str(error)
            return None
        except OutcomeUnknown as error:
            self.trouble = str(error)
            self._unsure.add(key)
            return None
        match result:
            case Applied(lease):
                self.leases[key] = lease
                return lease
            case Gone():
                # Deleted by hand; created again in the next round.
                self.leases.pop(key, None)
                return None
            case Lost(current) if change.kind is ChangeKind.PUT:
                # Somebody made it meanwhile (a worker that ended the parent, a sync).
                self.leases[key] = current
                if not current.is_finished:
                    await self._take_made(current)
                return None
            case Lost(current):
                raise self._taken(current, "has written it meanwhile")

    async def _take_made(self, lease: Lease) -> None:
        if lease.effective_owner not in (None, self._to.owner):
            raise self._taken(lease, "has it")
        await self._take(lease)

    async def _clean_up(self, standing: CommittedStanding) -> None:
        """Delete leases of shards that are long done, as a lease manager would."""
        ended: Sequence[Lease] = [each for each in self.leases.values() if each.is_finished]
        if standing.graph is None or not ended:
            return
        plan = plan_lease_cleanup(list(standing.graph.shards.values()), list(self.leases.values()))
        for each in plan.delete:
            if self._is_mine(each.lease) and each.lease.lease_key not in live(standing):
                await self._forget(each.lease)

    async def _forget(self, lease: Lease) -> None:
        try:
            await self._store.apply(delete(lease))
        except (Throttled, OutcomeUnknown):
            return
        self.leases.pop(lease.lease_key, None)

    def _taken(self, lease: Lease, how: str) -> LeaseTaken:
        who = lease.effective_owner or "nobody"
        if who == self._to.owner:
            who = "another run of this very query"
        return LeaseTaken(
            f"lease {lease.lease_key} of application {self._to.application}: {who} {how}. Two "
            "consumers would process the same records: stop one of them, or let the query publish "
            "to an application of its own (option publishTo)"
        )
