"""Functions that a pipeline of a test passes its table through."""


def copied(table):
    """Return what a sink takes of a record."""
    return table.select("data", "partition_key")


def payloads(table):
    """Return the fields of the payloads."""
    return table.select("payload.*")
