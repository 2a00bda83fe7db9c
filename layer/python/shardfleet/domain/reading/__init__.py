"""How fast a shard may be read and written: quotas and refusals."""
