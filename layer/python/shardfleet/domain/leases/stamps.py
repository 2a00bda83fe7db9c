"""
Whether what stands beside a checkpoint still counts: whose hands the lease was in, and since when.

Hazard H20. A tip mark, a window's state, how far lanes are ahead, a crash note: each says something
about a shard as its checkpoint stood, and proves nothing once that was set back. So each carries a
stamp. It counts only under the *generation* that is current, which every setting-back of ours
raises, and only if the lease has had no other owner since: the same owner, after a crash too, or
one other who got it from that one. How often it changed hands is what the lease itself counts
(``ownerSwitchesSinceCheckpoint``, protocol.md §1.2: a take and an assignment from a living owner
add 1, a checkpoint begins anew), so that a handover of ours, by way of nobody or of the next owner,
adds none, and a lost slot's lease that the manager assigns anew adds one.

For which checkpoints it counts says each kind itself.
"""

from __future__ import annotations

from typing import Self

from msgspec import Struct

from shardfleet.domain.leases.lease import Lease


class Generation(Struct, frozen=True, kw_only=True):
    """
    Which setting-back of a lease was ours last, and what was promised then.

    Attributes:
        number: rises with each, and never comes again; 0: there was none.
        at_ms: when it was last, epoch milliseconds.
        to: the checkpoint that was written then, ``number:sub``; "": another kind of change.
        made: the checkpoint with which the lease was to be made then; "": it was not.
        first: sequence number of the first record that was counted to come again; "": none.
        before: the numbers before, since the checkpoint was to be written.

    """

    number: int = 0
    at_ms: int = 0
    to: str = ""
    made: str = ""
    first: str = ""
    before: tuple[int, ...] = ()

    def numbers_for(self, lease: Lease) -> tuple[int, ...]:
        """
        Return under which numbers a state counts that is nowhere else.

        Those before are among them where the lease is not where it was to be: that was cut off, or
        somebody else had made it. Whoever reads on from there replaces the state before the
        checkpoint goes on.
        """
        place = self.to or self.made
        is_cut_off = place and place != _text(lease)
        return (self.number, *self.before) if is_cut_off else (self.number,)


class Stamp(Struct, frozen=True, kw_only=True):
    """
    Whose lease it was, and how it stood, when something was noted beside its checkpoint.

    Attributes:
        generation: of the lease.
        owner: who held it and wrote; "" for who writes without holding it.
        counter: of the lease; -1 where it is not known.
        switches: how often it had changed hands since its checkpoint.
        stood: the checkpoint, ``number:sub``.

    """

    generation: int = 0
    owner: str = ""
    counter: int = -1
    switches: int = 0
    stood: str = ""

    @classmethod
    def of(cls, lease: Lease, owner: str, generation: int) -> Self:
        """Return the stamp of who holds a lease."""
        return cls(
            generation=generation,
            owner=owner,
            counter=lease.lease_counter,
            switches=lease.owner_switches_since_checkpoint,
            stood=_text(lease),
        )

    def is_of(self, lease: Lease, generation: int) -> bool:
        """
        Return whether it is the lease that was stamped, and no setting-back of ours came since.

        Args:
            lease: as it is, perhaps in the hands of who asks.
            generation: that is current.

        """
        # A lower counter: it was made anew, or somebody else has counted (L1).
        return self.generation == generation and lease.lease_counter >= self.counter

    def counts(self, lease: Lease, generation: int) -> bool:
        """
        Return whether what was noted still says something about a lease as it is now.

        Args:
            lease: as it is, perhaps in the hands of who asks.
            generation: that is current.

        """
        if not self.is_of(lease, generation):
            return False
        if self.counter < 0:
            return True
        before = self.switches if self.stands_as(lease) else 0
        switches = lease.owner_switches_since_checkpoint - before
        return switches == 0 or (switches == 1 and lease.lease_owner != self.owner)

    def is_after(self, other: Self) -> bool:
        """Return whether it is of a later owner: whoever takes a lease raises its counter."""
        return (self.generation, self.counter) > (other.generation, other.counter)

    def stands_as(self, lease: Lease) -> bool:
        """Return whether the checkpoint is as it was then, whoever had the lease since."""
        return _text(lease) == self.stood


def _text(lease: Lease) -> str:
    checkpoint = lease.checkpoint
    return f"{checkpoint.sequence_number}:{checkpoint.sub_sequence_number}"
