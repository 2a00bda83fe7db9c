"""The kinds of payload, for whoever has to refuse another one; without Spark."""

from __future__ import annotations

NDJSON = "ndjson"
KINDS = ("json", NDJSON, "csv", "avro")
