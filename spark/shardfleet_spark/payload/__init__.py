"""Payloads into columns."""
