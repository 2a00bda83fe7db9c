"""The leases that a worker holds, and every write to them."""
