"""What is next for the records of a shard, and what became of them: done, given up, sent twice."""
