"""A manager over memory ports in virtual time, and the stream it lists."""

from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.slots.slot import SlotInput, claim, heartbeat
from shardfleet.domain.stream.hash_ranges import HASH_KEY_MAX, HashKeyRange
from shardfleet.domain.stream.sequence import StreamIncarnation
from shardfleet.domain.stream.shards import Shard
from shardfleet.engine.manager.turn import LeaseManager, ManagerPorts
from shardfleet.engine.ports import ListingFilter
from shardfleet.engine.shard.polling import PolledSource
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet_testkit.clock import VirtualClock
from shardfleet_testkit.memory import (
    MemoryEvents,
    MemoryKcl3Store,
    MemoryLauncher,
    MemoryLeaseStore,
    MemoryStateStore,
    SeededEntropy,
)

ARN = "arn:aws:kinesis:eu-central-1:123456789012:stream/clicks"


def shard(number, low, high, *, parents=(), closed=False):
    """Build a shard that covers the given sixteenths of the hash space, ``high`` excluded."""
    unit = (HASH_KEY_MAX + 1) // 16
    return Shard(
        shard_id=f"shardId-{number:012d}",
        hash_key_range=HashKeyRange(low * unit, high * unit - 1),
        starting_sequence_number=str(100 + number),
        ending_sequence_number="999" if closed else None,
        parent_shard_id=f"shardId-{parents[0]:012d}" if parents else None,
        adjacent_parent_shard_id=f"shardId-{parents[1]:012d}" if len(parents) > 1 else None,
    )


def four_shards():
    """Return four open shards over the whole hash space."""
    return [shard(n, 4 * n, 4 * n + 4) for n in range(4)]


class ListedStream:
    """What the manager asks of a stream: its incarnation and its shards."""

    def __init__(self, shards):
        """List these shards; the filter AT_LATEST shows the open ones."""
        self.shards = list(shards)
        self.created_ms = 1_600_000_000_000
        self.service_ms = lambda: None
        self.asked = []

    async def incarnation(self):
        """Describe the stream."""
        return StreamIncarnation(ARN, self.created_ms, service_ms=self.service_ms())

    async def list_shards(self, listing=ListingFilter.NONE, *, instant_ms=None):
        """List the shards as the filter says."""
        self.asked.append((listing, instant_ms))
        if listing is ListingFilter.NONE:
            return list(self.shards)
        if listing is ListingFilter.AT_TRIM_HORIZON:
            known = {s.shard_id for s in self.shards}
            return [s for s in self.shards if not known & set(s.parent_shard_ids)]
        return [s for s in self.shards if s.is_open]


class Fleet:
    """Memory ports, one manager, and hand-driven workers."""

    def __init__(self, shards=None, **options):
        """Begin with empty tables."""
        self.config = FleetConfig(
            fleet="f", stream_arn=ARN, lease_table="l", state_table="s", **options
        )
        self.clock = VirtualClock()
        self.leases = MemoryLeaseStore()
        self.kcl3 = MemoryKcl3Store()
        self.store = MemoryStateStore()
        self.state = FleetState(self.store, self.clock)
        self.stream = ListedStream(four_shards() if shards is None else shards)
        self.launcher = MemoryLauncher()
        self.events = MemoryEvents()
        self.manager = LeaseManager(self.config, self.ports())

    def use(self, leases):
        """Go on with another lease table."""
        self.leases = leases
        self.manager = LeaseManager(self.config, self.ports())

    def ports(self):
        """Return the manager's ports."""
        return ManagerPorts(
            leases=self.leases,
            kcl3=self.kcl3,
            state=self.state,
            stream=self.stream,
            source=PolledSource(self.stream, self.clock),
            launcher=self.launcher,
            clock=self.clock,
            entropy=SeededEntropy(7),
            events=self.events,
        )

    async def slot(self, slot_id):
        """Read one slot record."""
        found = await self.state.slot(slot_id)
        return None if found is None else found.slot

    async def beat(self, *slot_ids):
        """Let workers claim (if starting) and heartbeat, serving every assignment."""
        for slot_id in slot_ids:
            slot = await self.slot(slot_id)
            if slot.heartbeat_ms == 0:
                given = slot.slot_input()
                await self.state.update_slot(
                    slot_id, lambda s, given=given: claim(s, given, now_ms=self.clock.now_ms())
                )
            await self.state.update_slot(
                slot_id,
                lambda s: heartbeat(
                    s, now_ms=self.clock.now_ms(), served_seq=s.assign_seq, lags_ms={}
                ),
            )

    def renew(self, *lease_keys):
        """Move the counters as renewing workers would."""
        for key in lease_keys or list(self.leases.leases):
            lease = self.leases.leases[key]
            self.leases.leases[key] = replace(lease, lease_counter=lease.lease_counter + 1)

    def owners(self):
        """Return lease number to owner."""
        return {int(k[-3:]): le.lease_owner for k, le in sorted(self.leases.leases.items())}

    def named(self, kind):
        """Return the events of one class."""
        return [e for e in self.events.events if type(e).__name__ == kind]


async def running_fleet(fleet):
    """Bring a fresh fleet to the point where every lease has an owner that renews."""
    await fleet.manager.turn()
    slots = [d.id for d in await fleet.store.list("slot")]
    await fleet.beat(*slots)
    await fleet.manager.turn()
    fleet.renew()
    await fleet.beat(*slots)
    return slots


def invocation(slot, **changes):
    """Return the input of an invocation of this slot."""
    return replace(
        SlotInput(
            slot_id=slot.slot_id,
            name=slot.name,
            start_epoch=slot.start_epoch,
            generation=slot.generation,
        ),
        **changes,
    )
