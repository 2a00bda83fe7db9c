"""
One manager turn: what is found, planned, carried out, told.

More than a dozen modules, and one idea: each is a step of the same turn and has no other caller.
"""
