"""
What a person has paused: leases that nobody is to read until that is taken back.

A worker that holds a paused lease finishes its batch, checkpoints and gives it up; the manager
assigns it to nobody. Workers of another making that share the table know nothing of it and may
take such a lease.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from shardfleet.domain.reasons import Pause
from shardfleet.errors import ConfigurationError

# An item of DynamoDB holds 400 KB, and a row some 150 bytes.
LEASES_MOST = 2_000
# domain.balance.kcl3.Direction, which is above.
DIRECTIONS = ("from-java", "to-java")


class Migration(Struct, frozen=True, kw_only=True):
    """
    Leases are handed over between a Java KCL and the fleet; until then it shows Java no slot.

    Attributes:
        direction: `from-java` or `to-java`.
        by: a person.
        since_ms: epoch milliseconds.

    """

    direction: str
    by: str
    since_ms: int


class Pauses(Struct, frozen=True, kw_only=True):
    """
    Everything that is paused.

    Attributes:
        fleet: set while every lease is, also those that are still to come.
        leases: paused by name.
        migration: which one is under way; it pauses the part of the fleet in Java's balancing.
        is_unknown: what a person has paused cannot be read: what somebody reads goes on, for it
            was not paused, and what nobody reads waits.

    """

    fleet: Pause | None = None
    leases: Mapping[str, Pause] = field(default_factory=dict)
    migration: Migration | None = None
    is_unknown: bool = False

    def of(self, lease_key: str) -> Pause | None:
        """Return why a lease is paused, None when it is not."""
        return self.leases.get(lease_key, self.fleet)

    def among(self, lease_keys: Iterable[str]) -> dict[str, Pause]:
        """Return those of the leases that are paused."""
        if self.fleet is None and not self.leases:
            return {}
        return {key: pause for key in lease_keys if (pause := self.of(key)) is not None}

    def with_leases(self, lease_keys: Collection[str], pause: Pause) -> Pauses:
        """
        Pause these leases, too; what is paused already keeps who did it.

        Raises:
            ConfigurationError: too many are paused by name.

        """
        leases = dict.fromkeys(lease_keys, pause) | dict(self.leases)
        if len(leases) > LEASES_MOST:
            raise ConfigurationError(
                f"{len(leases)} leases would be paused by name, and one document holds "
                f"{LEASES_MOST}: pause the whole fleet (--all)"
            )
        return replace(self, leases=leases)

    def without_leases(self, lease_keys: Collection[str]) -> Pauses:
        """Let these leases be read again, as far as they are paused by name."""
        leases = {key: pause for key, pause in self.leases.items() if key not in lease_keys}
        return replace(self, leases=leases)
