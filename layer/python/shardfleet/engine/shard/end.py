"""
The end of a shard: children first, then SHARD_END, each write safe to repeat.

Order of protocol.md §4.6: create the child leases, write the child ids on the parent, checkpoint
SHARD_END. Whoever is cut off in between leaves a lease that the next owner ends again; nobody can
leave a finished parent without children (§8 row 5). Java: ``ShutdownTask``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from msgspec import Struct

from shardfleet.config import FleetConfig
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.leases.sync import start_of_child
from shardfleet.domain.stream.shards import ChildShard
from shardfleet.engine.ownership.checkpointer import Checkpointer
from shardfleet.engine.ownership.lease import HeldLease
from shardfleet.engine.ports import StreamDirectory
from shardfleet.engine.retry import Halted, Patience
from shardfleet.engine.state.fleet_state import FleetState


class ShardEnding(Struct, frozen=True, kw_only=True):
    """Ends shards of one stream."""

    checkpointer: Checkpointer
    stream: StreamDirectory
    state: FleetState
    patience: Patience
    config: FleetConfig

    async def end(self, held: HeldLease, children: Sequence[ChildShard]) -> None:
        """
        End a shard whose records are all done.

        Raises:
            Halted: asked to stop, or the lease is lost; the next owner ends the shard.

        """
        checkpointer, patience = self.checkpointer, self.patience
        await patience.persist(lambda: checkpointer.flush(held), held.halt)
        for child in sorted(children, key=lambda child: child.shard_id):
            await self._wait_for_other_parents(held, child)
            lease = Lease(
                lease_key=held.shard.key_of(child.shard_id),
                checkpoint=start_of_child(held.lease.checkpoint),
                parent_shard_ids=tuple(sorted(child.parent_shard_ids)),
                hash_key_range=child.hash_key_range,
            )
            await self._write(held, partial(checkpointer.create, lease))
        ids = [child.shard_id for child in children]
        if ids:
            await self._write(held, lambda: checkpointer.store_children(held, ids))
        if not await patience.persist(lambda: checkpointer.finish(held), held.halt):
            raise Halted

    async def _write(self, held: HeldLease, write: Callable[[], Awaitable[object]]) -> None:
        """
        Write until it is done, but nothing for a lease that somebody else may have had meanwhile.

        After a long stall, also one between two attempts, its children may be finished and deleted
        already, and creating them again would bring them back to life (§8 row 9).
        """

        async def confirmed() -> None:
            if not await self.checkpointer.confirm(held):
                raise Halted
            await write()

        await self.patience.persist(confirmed, held.halt)

    async def _wait_for_other_parents(self, held: HeldLease, child: ChildShard) -> None:
        """
        Wait until the other parent of a merge has a lease, too (protocol.md §4.6 step 2).

        Otherwise the child would not wait for it (a missing parent lease blocks nobody, §4.7).
        It need not have one if the child's lease is there, or if it has left the stream.
        """
        patience = self.patience
        for parent in child.parent_shard_ids:
            while parent != held.shard.shard_id and await patience.persist(
                partial(self._lacks_lease, held, parent, child), held.halt
            ):
                await patience.persist(self.state.prompt_manager, held.halt)
                await patience.pause(self.config.parent_poll_ms, held.halt)

    async def _lacks_lease(self, held: HeldLease, parent: str, child: ChildShard) -> bool:
        checkpointer = self.checkpointer
        if await checkpointer.read(held.shard.key_of(parent)) is not None:
            return False
        if await checkpointer.read(held.shard.key_of(child.shard_id)) is not None:
            return False
        listed = {shard.shard_id for shard in await self.stream.list_shards()}
        # A listing that lacks the child is from before the merge, maybe from before this parent.
        return parent in listed or child.shard_id not in listed
