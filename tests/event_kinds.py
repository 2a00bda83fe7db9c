"""All kinds of diagnostic events."""

import pkgutil
from importlib import import_module

from shardfleet import events
from shardfleet.events.base import Event


def event_kinds():
    """Return every class of event that a module of `shardfleet.events` defines."""
    modules = [
        import_module(f"{events.__name__}.{each.name}")
        for each in pkgutil.iter_modules(events.__path__)
    ]
    return [
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Event) and kind.__module__ == module.__name__
    ]
