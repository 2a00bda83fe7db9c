"""
One shard in a worker's hands: read, delivered, ended, left.

More than a dozen modules, and one idea: each is a part of the work on one held lease.
"""
