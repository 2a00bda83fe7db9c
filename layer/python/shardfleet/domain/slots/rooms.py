"""Who carries slots beside Lambda, and which are Lambda's: processes are paid for anyway."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from shardfleet.domain.slots.slot import Slot
from shardfleet.domain.slots.upkeep import stays


class Rooms(Struct, frozen=True, kw_only=True):
    """
    The processes of a fleet, each of which has room for one slot.

    Attributes:
        hosts: names of those that take offers.
        carried: worker ids of slots that one of them has taken, or may; None: all are.

    """

    hosts: frozenset[str] = frozenset()
    carried: frozenset[str] | None = None

    def bought(self, slots: Iterable[Slot]) -> frozenset[str]:
        """Return the ids of the slots that Lambda runs beside processes, and that are to stay."""
        if self.carried is None or not self.hosts:
            return frozenset()
        return frozenset(
            slot.slot_id for slot in slots if stays(slot) and slot.worker_id not in self.carried
        )

    def least(self, slots: Iterable[Slot], *, unfinished: int) -> int:
        """
        Return how many slots there are to be, whatever the load: one for each process.

        Where a process has none while Lambda runs some, it gets one more than these: theirs is too
        many then, and leaves.
        """
        staying = [slot for slot in slots if stays(slot)]
        wanted, bought = min(len(self.hosts), unfinished), len(self.bought(staying))
        return wanted + bought if bought and len(staying) - bought < wanted else wanted
