"""Leases: what one is, which are made, changed, expired, removed."""
