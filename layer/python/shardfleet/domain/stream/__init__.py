"""What a stream is made of: sequence numbers, shards, lineage."""
