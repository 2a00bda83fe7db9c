"""Leases that nobody reads on purpose: asleep, or paused."""
