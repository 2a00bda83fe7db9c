"""Payloads as text: base64 as Lambda's event has it, ten times as quick as the standard library."""

from __future__ import annotations

from pybase64 import b64encode_as_string


def payload_text(data: bytes) -> str:
    """Return base64."""
    return b64encode_as_string(data)
