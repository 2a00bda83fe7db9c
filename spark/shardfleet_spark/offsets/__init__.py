"""The offset that Spark stores, the lineage in it, and the seals beside it."""
