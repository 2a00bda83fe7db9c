"""
What is next for the records of a shard, and what became of them: done, given up, sent twice.

Each way of delivering has its module, and what is next for a record is one idea in all of them.
"""
