"""The kinds of payload, for whoever has to refuse another one; without Spark."""

from __future__ import annotations

NDJSON = "ndjson"
REGISTERED = ("avro-confluent", "avro-glue")
"""Those whose schemas are in a registry."""

KINDS = ("json", NDJSON, "csv", "avro", *REGISTERED)

SCHEMAS = "schemas"
"""Payload option of those with a registry: a folder for the types of schemas that were met."""
