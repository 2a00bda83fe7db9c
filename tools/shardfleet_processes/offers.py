"""The offers of a fleet as one of its processes has them, which shows that it lives."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from shardfleet.domain.slots.offers import Offer
from shardfleet.domain.slots.usage import UNKNOWN
from shardfleet.engine.state.kinds import CONFIG, HOST, OFFER
from shardfleet.engine.state.offers import Offers
from shardfleet.errors import ShardfleetError

THE_CONFIG = "manager"


class OfferLauncher(Offers):
    """The ``WorkerLauncher`` port of a process, which takes offers itself."""

    async def beat(self, started_ms: int, *, is_leaving: bool = False, cpu: int = UNKNOWN) -> None:
        """
        Show that this process lives, each third of the failover time.

        Raises:
            OutcomeUnknown, Throttled: try again.

        """
        body = {"started_ms": started_ms, "is_leaving": is_leaving, "cpu": cpu}
        await self._write(HOST, self.host, body)

    async def leave(self) -> None:
        """Withdraw this process; what fails is seen by its silence."""
        with suppress(ShardfleetError):
            version = self._versions.pop(f"{HOST}/{self.host}", 0)
            await self._store.raw.delete(HOST, self.host, expected_version=version)

    async def finish(self, name: str, offer: Offer) -> None:
        """Mark a slot of this process as over; what fails is repaired when the process ends."""
        body = {"text": offer.text, "host": self.host, "is_over": True}
        with suppress(ShardfleetError):
            await self._write(OFFER, name, body)
        self._versions.pop(f"{OFFER}/{name}", None)

    async def pass_on(self, name: str, offer: Offer) -> None:
        """
        Offer a slot of this process once more: another one's turn goes on with its leases.

        Raises:
            OutcomeUnknown, Throttled: try again.

        """
        await self._write(OFFER, name, {"text": offer.text})
        self._versions.pop(f"{OFFER}/{name}", None)

    async def publish(self, env: Mapping[str, str]) -> None:
        """
        Keep the fleet's configuration where commands find it (the manager's).

        Raises:
            OutcomeUnknown, Throttled: try again.

        """
        found = await self._store.get(CONFIG, THE_CONFIG)
        if found is None or found.body is None or found.body.env != env:
            version = found.version if found else None
            await self._store.raw.write(CONFIG, THE_CONFIG, {"env": env}, expected_version=version)
