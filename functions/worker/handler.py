"""The worker of a fleet whose handler is a function of its own: everything is in the library."""

from shardfleet.runtime.entry_points import worker_handler

__all__ = ["worker_handler"]
