"""A query's positions as leases, and its figures as metrics."""
