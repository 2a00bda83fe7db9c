"""
Schema registries, of which a Spark query asks the schemas of its payloads: Confluent's and Glue's.

A schema never changes under its id, so what was answered once may be kept. Calls block.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from base64 import b64encode
from typing import Any
from urllib.parse import unquote, urlsplit

from shardfleet.errors import ConfigurationError, ShardfleetError

_SCHEMA_NOT_FOUND = 40403
"""Confluent's code of "Schema not found" (Schema Registry API reference, GET /schemas/ids)."""

_AVRO = "AVRO"
_TIMEOUT_S = 30.0
_ANSWER_BYTES_MOST = 16 * 1024 * 1024
_SHOWN = 200


class NoSuchSchema(ShardfleetError):
    """The registry has no Avro schema of this id."""


class ConfluentRegistry:
    """
    A registry with Confluent's REST interface.

    Args:
        url: of its root; a user and password in it are sent as basic authentication.

    Raises:
        ConfigurationError: it is no URL.

    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(
                "payload option registry: a URL such as https://host:8081 is needed"
            )
        port = f":{parts.port}" if parts.port else ""
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self._root = f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(user.encode()).decode()}"

    def schema_of(self, schema_id: str) -> str:
        """
        Return the Avro schema of an id.

        Raises:
            NoSuchSchema: there is none.
            ShardfleetError: the registry does not say.

        """
        where = f"{self._root}/schemas/ids/{schema_id}"
        request = urllib.request.Request(where, headers=self._headers)  # noqa: S310 - http or https
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
                body = answer.read(_ANSWER_BYTES_MOST)
        except urllib.error.HTTPError as error:
            said = error.read(_ANSWER_BYTES_MOST)
            if _field(said, "error_code") == _SCHEMA_NOT_FOUND:
                raise NoSuchSchema(f"schema {schema_id} is not in the registry") from error
            raise ShardfleetError(
                f"registry {where}: HTTP {error.code} {said[:_SHOWN]!r}; a schema was expected"
            ) from error
        except OSError as error:
            raise ShardfleetError(f"registry {where}: {error}; a schema was expected") from error
        kind, schema = _field(body, "schemaType") or _AVRO, _field(body, "schema")
        if kind != _AVRO:
            raise NoSuchSchema(f"schema {schema_id} is {kind}, and Avro is needed")
        if not isinstance(schema, str):
            raise ShardfleetError(f"registry {where}: no schema in {body[:_SHOWN]!r}")
        return schema


class GlueRegistry:
    """
    The registry of AWS Glue; an id is that of a schema's version, whichever registry it is in.

    Args:
        client: of Glue (GetSchemaVersion).

    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def schema_of(self, schema_id: str) -> str:
        """
        Return the Avro schema of an id.

        Raises:
            NoSuchSchema: there is none.
            botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError: Glue does not say.

        """
        try:
            found = self._client.get_schema_version(SchemaVersionId=schema_id)
        except self._client.exceptions.EntityNotFoundException as error:
            raise NoSuchSchema(f"schema {schema_id} is not in the registry") from error
        if found["DataFormat"] != _AVRO:
            raise NoSuchSchema(f"schema {schema_id} is {found['DataFormat']}, and Avro is needed")
        return str(found["SchemaDefinition"])


def _field(body: bytes, name: str) -> Any:
    try:
        found = json.loads(body)
    except ValueError:
        return None
    return found.get(name) if isinstance(found, dict) else None
