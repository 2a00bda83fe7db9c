"""Where a shard is read, and how fast it may be read and written: the cursor, quotas, refusals."""
