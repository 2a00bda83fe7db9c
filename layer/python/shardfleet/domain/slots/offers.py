"""
Slots that processes carry: which are free to take, who takes one, and when one is over.

The manager offers a slot, and a process takes it by compare-and-set. A process shows that it lives
by writing its own document each third of the failover time; whoever sees it unchanged for the
failover time, by a clock of its own, takes the process for dead, and what it has taken for closed.
Clocks of two machines are never compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from shardfleet.domain.slots.usage import UNKNOWN

BEATS = 3
"""Signs of life in a failover time."""
LAMBDA = "lambda"
"""Who has taken an offer that no process took: an execution runs it; no host has this name."""


class Offer(Struct, frozen=True, kw_only=True):
    """
    One execution of a slot, for a process to run.

    Attributes:
        name: the execution's.
        text: its input.
        host: the process that has taken it; empty: nobody has.
        is_over: its process has ended it.

    """

    name: str
    text: str
    host: str = ""
    is_over: bool = False


class Host(Struct, frozen=True):
    """
    A process that takes offers.

    Attributes:
        name: its own.
        started_ms: when it started, epoch milliseconds by its clock; for a person.
        is_leaving: it takes no more, and hands over what it has.
        cpu: utilisation of where it runs, thousandths; -1 unknown.

    """

    name: str
    started_ms: int
    is_leaving: bool = False
    cpu: int = UNKNOWN


class Seen(Struct, frozen=True):
    """
    A document as one observer has seen it.

    Attributes:
        version: of the document.
        since_ms: when it was first seen with that version, milliseconds of the observer's
            monotonic clock.

    """

    version: int
    since_ms: int

    def stands_still(self, *, at_ms: int, failover_ms: int) -> bool:
        """
        Return whether its writer is taken for dead.

        Args:
            at_ms: when the reading that found it unchanged began: what it found is no older.
            failover_ms: how long a writer may be silent.

        """
        return at_ms - self.since_ms >= failover_ms


def seen_again(
    before: Mapping[str, Seen], versions: Mapping[str, int], *, at_ms: int
) -> dict[str, Seen]:
    """
    Return what is known after a reading; what has changed is seen anew, what is gone forgotten.

    Args:
        before: what was known.
        versions: of the documents read, by name.
        at_ms: when the reading had ended, by the monotonic clock.

    """
    known = {name: before.get(name) for name in versions}
    return {
        name: seen if seen and seen.version == versions[name] else Seen(versions[name], at_ms)
        for name, seen in known.items()
    }


class Board(Struct, frozen=True, kw_only=True):
    """
    The offers and the processes, as one of the processes sees them.

    Attributes:
        offers: by name; those that are over are left out.
        waiting: names of those that nobody has taken for the failover time.
        alive: processes that live.
        hosts: of them, those that take offers.

    """

    offers: Mapping[str, Offer]
    waiting: frozenset[str]
    alive: frozenset[str]
    hosts: frozenset[str]

    def to_take(self, host: str, *, is_spilled: bool = False) -> str | None:
        """
        Return the offer that a process is to take now; None: none.

        A process with more slots than another leaves it to that one; what nobody has taken for the
        failover time, anybody takes; but Lambda does, if what is left over is spilled.
        """
        if is_spilled and self._counts[host]:
            return None
        is_idlest = self._counts[host] <= self._fewest
        free = sorted(name for name, offer in self.offers.items() if not offer.host)
        return next((name for name in free if is_idlest or name in self.waiting), None)

    def to_pass_on(self, host: str) -> str | None:
        """
        Return the slot that a process passes on to one that has two fewer; None: none.

        One process does so at a time, the last by name of those that have most.
        """
        counts, is_one_free = self._counts, not all(each.host for each in self.offers.values())
        if is_one_free or counts[host] - self._fewest < 2:  # noqa: PLR2004 - else they change places
            return None
        if host != max(self.hosts, key=lambda each: (counts[each], each)):
            return None
        return max(name for name, offer in self.offers.items() if offer.host == host)

    @property
    def _counts(self) -> Counter[str]:
        return Counter(each.host for each in self.offers.values() if each.host in self.alive)

    @property
    def _fewest(self) -> int:
        counts = self._counts
        return min((counts[host] for host in self.hosts), default=0)
