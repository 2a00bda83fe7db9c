"""The executor's half: pages of shards, fetched, sealed, made into rows."""
