"""
Where a shard stands, kept otherwise than plainly: manual, lanes, windows.

None knows of another, and nothing else in the engine knows of any: the composition root chooses.
"""
