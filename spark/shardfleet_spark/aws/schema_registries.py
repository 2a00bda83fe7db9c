"""
Schema registries, of which a Spark query asks the schemas of its payloads: Confluent's and Glue's.

A schema never changes under its id, so a process asks for it once. What a registry answers was
written by others: it is read within bounds, and no error quotes it. Calls block.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Any, Protocol
from urllib.parse import quote, unquote, urlsplit

import msgspec
from msgspec import Struct

from shardfleet.errors import ConfigurationError, ShardfleetError
from shardfleet_spark.host.background_loop import BackgroundLoop

_SCHEMA_NOT_FOUND = 40403
"""Confluent's code of "Schema not found" (Schema Registry API reference, GET /schemas/ids)."""

_AVRO = "AVRO"
_OK, _REDIRECTS = 200, range(300, 400)
_KEPT_MOST = 1_000


class NoSuchSchema(ShardfleetError):
    """The registry has no Avro schema of this id."""


class Registry(Protocol):
    """What is asked for schemas."""

    def schema_of(self, schema_id: str) -> str:
        """
        Return the Avro schema of an id.

        Raises:
            NoSuchSchema: there is none.
            ShardfleetError: the registry does not say.

        """
        ...


class AnswerBounds(Struct, frozen=True):
    """
    What an answer of a registry may take.

    Attributes:
        size_bytes: of its body.
        whole_s: from the question to the last byte, however it drips.

    """

    size_bytes: int = 4 * 1024 * 1024
    whole_s: float = 30.0


class _Answer(msgspec.Struct):
    """What is read of a body; what else is in it is passed over."""

    schema: str | None = None
    schemaType: str | None = None  # noqa: N815 - Confluent's name
    error_code: int | None = None


class ConfluentRegistry:
    """
    A registry with Confluent's REST interface.

    Redirects are not followed: they may lead anywhere, and the password would go there.

    Args:
        url: of its root; a user and password in it are sent as basic authentication.
        bounds: of each answer.

    Raises:
        ConfigurationError: it is no URL, or httpx is not there.

    """

    def __init__(self, url: str, *, bounds: AnswerBounds | None = None) -> None:
        try:
            import httpx  # noqa: PLC0415 - who has other payloads does without
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                "payloads of a Confluent registry need httpx: pip install 'shardfleet[spark]'"
            ) from error
        self._http = httpx
        self._bounds = bounds or AnswerBounds()
        try:
            parts = urlsplit(url)
            port = f":{parts.port}" if parts.port else ""
            host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
            self._root = f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"
            if parts.scheme not in ("http", "https") or not (host and httpx.URL(self._root).host):
                raise ValueError(parts.scheme)
        except (ValueError, httpx.InvalidURL):
            raise ConfigurationError(
                "payload option registry: a URL such as https://host:8081 is needed"
            ) from None  # Which may quote the password.
        self._trust = ssl.create_default_context()
        self._name = f"registry {host}{port}"
        self._auth = (
            None
            if parts.username is None
            else httpx.BasicAuth(unquote(parts.username), unquote(parts.password or ""))
        )

    def schema_of(self, schema_id: str) -> str:
        """
        Return the Avro schema of an id.

        Raises:
            NoSuchSchema: there is none.
            ShardfleetError: the registry does not say.

        """
        status, body = _loop(os.getpid()).run(
            self._get(f"{self._root}/schemas/ids/{quote(schema_id)}")
        )
        try:
            answer = msgspec.json.decode(body, type=_Answer)
        except (ValueError, RecursionError):  # Neither is quoted: an error's text may quote it.
            answer = None
        if status != _OK:
            if answer and answer.error_code == _SCHEMA_NOT_FOUND:
                raise NoSuchSchema(f"schema {schema_id} is not in the registry")
            what = ", a redirect, which is not followed" if status in _REDIRECTS else ""
            raise self._silent(f"HTTP {status}{what}")
        if answer is None:
            raise self._silent("its answer is no JSON of a schema")
        if (answer.schemaType or _AVRO) != _AVRO:
            raise NoSuchSchema(f"schema {schema_id} is not of the type {_AVRO}, which is needed")
        if answer.schema is None:
            raise self._silent("its answer lacks `schema`")
        return answer.schema

    async def _get(self, where: str) -> tuple[int, bytes]:
        """Return status and body of an answer that came whole and within the bounds."""
        http, most, body = self._http, self._bounds.size_bytes, bytearray()
        headers = {
            "Accept": "application/vnd.schemaregistry.v1+json, application/json",
            "Accept-Encoding": "identity",  # What is packed small may be large.
        }
        try:
            async with (
                asyncio.timeout(self._bounds.whole_s),
                http.AsyncClient(timeout=None, verify=self._trust) as client,
                client.stream("GET", where, headers=headers, auth=self._auth) as answer,
            ):
                if answer.headers.get("Content-Encoding", "identity") != "identity":
                    raise self._silent("its answer is compressed, which was not asked for")
                async for part in answer.aiter_raw():
                    body += part
                    if len(body) > most:
                        raise self._silent(f"its answer has more than {most} bytes")
        except TimeoutError as error:
            raise self._silent(f"no whole answer in {self._bounds.whole_s:g} s") from error
        except http.ConnectError as error:
            raise self._silent(f"no connection: {error}") from error
        except http.HTTPError as error:
            # Its text may quote what came; its kind says enough.
            kind = type(error).__name__
            raise self._silent(f"its answer is no whole HTTP answer ({kind})") from None
        return answer.status_code, bytes(body)

    def _silent(self, why: str) -> ShardfleetError:
        return ShardfleetError(f"{self._name}: {why}; a schema was expected")


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
            ShardfleetError: the answer lacks the schema or its format.
            botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError: Glue does not say.

        """
        try:
            answer = self._client.get_schema_version(SchemaVersionId=schema_id)
        except self._client.exceptions.EntityNotFoundException as error:
            raise NoSuchSchema(f"schema {schema_id} is not in the registry") from error
        for member in ("DataFormat", "SchemaDefinition"):
            if not answer.get(member):
                raise ShardfleetError(f"Glue's answer for schema {schema_id} lacks {member}")
        if answer["DataFormat"] != _AVRO:
            raise NoSuchSchema(f"schema {schema_id} is not of the type {_AVRO}, which is needed")
        return str(answer["SchemaDefinition"])


class KeptSchemas:
    """
    A registry's schemas as a process knows them: each is asked for once.

    Args:
        registry: that is asked.
        now_s: a clock that only goes forwards.
        unknown_s: how long an id that the registry had not is not asked for again; it may be
            registered meanwhile.

    """

    def __init__(
        self,
        registry: Registry,
        *,
        now_s: Callable[[], float] = time.monotonic,
        unknown_s: float = 60.0,
    ) -> None:
        self._registry = registry
        self._now_s = now_s
        self._unknown_s = unknown_s
        self._known: OrderedDict[str, _Kept] = OrderedDict()
        self._lock = Lock()

    def schema_of(self, schema_id: str) -> str:
        """
        Return the Avro schema of an id.

        Raises:
            NoSuchSchema: there is none.
            ShardfleetError: the registry does not say; it is asked again next time.

        """
        with self._lock:
            kept = self._known.get(schema_id)
        if kept is None or (kept.schema is None and self._now_s() >= kept.until_s):
            kept = self._asked(schema_id)
        if kept.schema is None:
            raise NoSuchSchema(kept.why)
        return kept.schema

    def _asked(self, schema_id: str) -> _Kept:
        try:
            kept = _Kept(schema=self._registry.schema_of(schema_id))
        except NoSuchSchema as error:
            kept = _Kept(why=str(error), until_s=self._now_s() + self._unknown_s)
        with self._lock:
            self._known[schema_id] = kept
            self._known.move_to_end(schema_id)
            while len(self._known) > _KEPT_MOST:
                self._known.popitem(last=False)
        return kept


class _Kept(Struct, frozen=True):
    schema: str | None = None
    why: str = ""
    until_s: float = 0.0


@cache
def _loop(_process: int) -> BackgroundLoop:
    """Return the process's loop; a process that was forked has no thread of its parent's."""
    return BackgroundLoop()
