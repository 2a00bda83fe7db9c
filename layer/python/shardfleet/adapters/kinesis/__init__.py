"""Kinesis: reading, writing, listing, and its answers' bytes."""
