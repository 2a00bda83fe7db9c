"""
Where a shard stands, kept in one of four ways: plain, manual, lanes, windows.

None knows of another, and nothing else in the engine knows of any: the composition root chooses.
"""
