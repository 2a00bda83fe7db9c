"""Processes that read and decode pages beside the worker's own."""
