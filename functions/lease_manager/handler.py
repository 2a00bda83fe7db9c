"""The lease manager's Lambda function: everything is in the library."""

from shardfleet.runtime.managing import collect_seldom, manager_handler

__all__ = ["manager_handler"]

collect_seldom()
