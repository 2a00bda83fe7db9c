"""One worker turn: its slot, its shards, its tasks."""
