"""
Diagnostic events: frozen structures, the only thing that metrics, logs and tests see.

An event's log name is its class name; its fields are ids and numbers with units in their names.
No payload and no partition key is ever part of an event.
"""
