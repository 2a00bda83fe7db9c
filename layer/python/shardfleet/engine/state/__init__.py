"""The documents of the fleet's own table, typed."""
