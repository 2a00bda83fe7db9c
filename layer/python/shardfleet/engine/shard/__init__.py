"""One shard in a worker's hands: read, delivered, ended, left."""
