"""What became of the records of a batch: done, failed, sent twice."""
