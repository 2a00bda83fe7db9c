"""What is done about a record that is given up: it is kept elsewhere, or its shard stops."""

from __future__ import annotations

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.progress import position_of
from shardfleet.domain.delivery.stops import StopNote
from shardfleet.engine.ownership.lease import HeldLease
from shardfleet.engine.ports import FailedRecords
from shardfleet.engine.shard.ports import DeliveryPorts
from shardfleet.errors import ConfigurationError, ShardfleetError
from shardfleet.events.delivery import RecordNotKept, ShardStopped


class StoppedByPolicy(Exception):
    """The shard was stopped; the stop is on record."""


class GivingUp:
    """Keeps what is given up of one shard, and stops it."""

    def __init__(self, held: HeldLease, *, config: FleetConfig, ports: DeliveryPorts) -> None:
        """Prepare, for a lease that is held."""
        self._held = held
        self._config = config
        self._ports = ports

    async def keep(self, failed: FailedRecords) -> str:
        """
        Keep records elsewhere and return where; as long as that fails, the shard waits.

        Raises:
            Halted: asked to stop meanwhile.

        """
        dead_letters = self._ports.dead_letters
        if dead_letters is None:
            message = f"on_exhausted: {self._config.on_exhausted} found, but nothing keeps records"
            raise ConfigurationError(message)
        failures = 0
        while True:
            try:
                return await dead_letters.record(failed)
            except ShardfleetError as error:
                failures += 1
                self._ports.events.emit(
                    RecordNotKept(
                        lease_key=self._held.lease_key,
                        worker_id=failed.worker_id,
                        position=str(position_of(failed.records[0])),
                        error=str(error),
                    )
                )
            await self._ports.patience.pause(
                self._ports.patience.back_off_ms(failures), self._held.halt
            )

    async def stop(self, position: str, *, error: str, attempts: int) -> None:
        """
        Put a stop on record; the shard rests until somebody removes it.

        What came before it does not count any more: once resumed, the record, which may be another
        by then, has all its attempts, and its neighbours go along.

        Raises:
            StoppedByPolicy: always, once it is on record.

        """
        self._ports.notes.attempts(self._held.lease_key).begin_anew()
        note = StopNote(
            lease_key=self._held.lease_key,
            position=position,
            error=error,
            attempts=attempts,
            worker_id=self._ports.checkpointer.worker_id,
            at_ms=self._ports.clock.now_ms(),
        )
        await self._ports.patience.persist(
            lambda: self._ports.state.write_stop(note), self._held.halt
        )
        self._ports.events.emit(
            ShardStopped(
                lease_key=note.lease_key, worker_id=note.worker_id, position=position, error=error
            )
        )
        await self._ports.patience.persist(
            lambda: self._ports.notes.settle(note.lease_key), self._held.halt
        )
        raise StoppedByPolicy(note.error)
