"""What a handler object is told of its shard: in order, by one process, and nothing afterwards."""

from __future__ import annotations

from shardfleet.domain.delivery.hooks import Hook
from shardfleet_testkit.checkers.checker import CallBegun, Checker, LeaseWrite, Suspect


class HooksTellALife(Checker):
    """
    ``started`` comes before the first record; a last hook comes once, and nothing follows it.

    ``ended`` comes before SHARD_END is written. A last hook may be missing, as with a process that
    dies: where it has not come, what is open comes again. A dead process calls nothing.
    """

    def __init__(self, *given: object, **options: object) -> None:
        """Know of no objects."""
        super().__init__(*given, **options)  # type: ignore[arg-type]
        self._alive: set[tuple[str, str]] = set()

    def call_begun(self, call: CallBegun) -> None:
        """See records on their way to an object."""
        if call.has_hooks and (call.by.name, call.shard_id) not in self._alive:
            text = f"{call.by.name} is handed records, but its object was not started, or is over"
            self.found(call.at_ms, call.shard_id, text)

    def hook_told(self, at_ms: int, by: Suspect, shard_id: str, *, hook: Hook) -> None:
        """See a hook begin."""
        life = (by.name, shard_id)
        is_alive = life in self._alive
        if hook is Hook.STARTED and is_alive:
            self.found(at_ms, shard_id, f"{by.name} is started, but the object before is not over")
        if hook is not Hook.STARTED and not is_alive:
            self.found(
                at_ms,
                shard_id,
                f"{by.name} is told {hook}, but its object was not started, or is over",
            )
        if hook.is_last:
            self._alive.discard(life)

    def hook_over(self, by: Suspect, shard_id: str, hook: Hook, *, failed: bool) -> None:
        """See a hook return."""
        life = (by.name, shard_id)
        if hook is Hook.STARTED and not failed:
            self._alive.add(life)
        if hook is Hook.ENDED and not failed:
            self._alive.discard(life)

    def lease_written(self, write: LeaseWrite) -> None:
        """See a shard end while its object is not told."""
        before, after = write.before, write.after
        if after is None or not after.is_finished:
            return
        if before is not None and before.is_finished:
            return  # By somebody else, who left the counter alone: it is renewed once more (H8).
        key = after.lease_key
        if (write.by.name, key) in self._alive:
            text = f"{write.by.name} has written SHARD_END before its object was told ended"
            self.found(write.at_ms, key, text)
