"""Rows into a stream."""
