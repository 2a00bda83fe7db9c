"""
A folder that is put on the import path of Lambda processes: it holds `ledger_probe` alone.

On purpose it is no part of what `shardfleet` is to them: they import shardfleet from the layer, and
the layer has no `shardfleet_local`.
"""
