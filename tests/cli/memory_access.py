"""What a command has of a fleet, on the memory ports."""

from shardfleet_ops.cli.fleet_access import FleetAccess
from shardfleet_testkit.memory import MemoryKcl3Store, MemoryOwnerIndex


def memory_access(config, *, leases, state, stream, clock):
    """Build it; there is no KCL 3 and nothing to write records with."""
    return FleetAccess(
        config=config,
        leases=leases,
        state=state,
        stream=stream,
        writer=None,
        kcl3=MemoryKcl3Store(),
        index=MemoryOwnerIndex(),
        clock=clock,
    )
