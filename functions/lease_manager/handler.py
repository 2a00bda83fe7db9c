"""The lease manager's Lambda function: everything is in the library."""

from shardfleet.runtime.managing import manager_handler

__all__ = ["manager_handler"]
