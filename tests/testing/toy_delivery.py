"""
A way of delivering that no product file knows: a record is done when the next one has been handled.

So one record is always open, until the handler is asked without records, or the shard has ended.
"""

from shardfleet.engine.shard.progress import Progress


class ToyProgress(Progress):
    """One batch after another, done up to the last record but one."""

    def begin_life(self):
        """Know of nothing that is open: it comes again."""
        super().begin_life()
        self._open = None

    @property
    def has_open(self):
        """Return whether a record is handled and not done."""
        return self._open is not None

    def pass_by(self, position):
        """Go on behind what was open before."""
        before, self._open = self._open, position
        if before is not None:
            self.held.note_progress(before)

    async def finish(self):
        """Be done with the last record of a shard that has ended, then as any progress does."""
        self._settle()
        await super().finish()

    async def rest(self):
        """Be done with what was handled, before the shard is left."""
        self._settle()

    def _settle(self):
        open_now, self._open = self._open, None
        if open_now is not None and self.held.is_held:
            self.held.note_progress(open_now)
