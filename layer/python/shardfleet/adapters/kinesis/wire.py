"""
GetRecords and PutRecords without the SDK's machinery: the thin way for the two busy calls.

botocore stays for what is subtle and rare: credentials, the endpoint's rules, and what an error's
body means. What this cannot do exactly as botocore would (an endpoint with a path, a proxy spoken
to by TLS, another way of signing) it leaves to botocore: :func:`open_wire` then returns None, and
the caller uses its client. Repeats follow botocore's standard mode: which errors, how long the
pauses, and a quota of repeats shared by all calls.
"""

from __future__ import annotations

import base64
import os
import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import msgspec
from botocore.exceptions import (
    ClientError,
    ConnectionError,  # noqa: A004 - botocore's own, the parent of its network errors
    ConnectTimeoutError,
    HTTPClientError,
    ReadTimeoutError,
)
from botocore.httpsession import get_cert_path
from botocore.parsers import create_parser
from botocore.utils import get_environ_proxies

from shardfleet.adapters.http.connections import Endpoint, HttpAnswer, HttpConnections, Proxy
from shardfleet.adapters.http.sigv4 import RequestSigner, Scope
from shardfleet.adapters.kinesis.decode import UnreadableAnswer, decode_page
from shardfleet.adapters.kinesis.put_records_body import decode_put_records, encode_put_records
from shardfleet.adapters.sdk_errors import THROTTLING_CODES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botocore.credentials import Credentials
    from botocore.session import Session
    from mypy_boto3_kinesis.client import KinesisClient

    from shardfleet.engine.ports import PutEntry, PutOutcome, RecordsPage

_TARGET = "Kinesis_20131202"
_OK = 200
_ATTEMPTS = 3
# Of a credential: key id, day, region, service, "aws4_request".
_CREDENTIAL_PARTS = 5
# botocore's standard mode (`botocore.retries.standard`, `botocore.retries.quota`).
_TRANSIENT = frozenset({500, 502, 503, 504})
_TRANSIENT_CODES = frozenset({"RequestTimeout", "RequestTimeoutException"})
_BACK_OFF_MOST_S = 20.0
_QUOTA, _COST, _TIMEOUT_COST = 500, 5, 10


class _GetRecords(msgspec.Struct):
    """``GetRecordsInput``."""

    ShardIterator: str
    Limit: int
    StreamARN: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WireTime:
    """
    Time and chance, replaced by tests.

    Attributes:
        now_s: epoch seconds, for signatures.
        sleep_s: waits before a repeat.
        chance: between 0 and 1, for the length of that wait.

    """

    now_s: Callable[[], float] = time.time
    sleep_s: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """
    Who calls, and how stubbornly.

    Attributes:
        user_agent: the SDK's.
        attempts: in all, at least 1.
        time: of signatures and pauses.

    """

    user_agent: str
    attempts: int
    time: WireTime


class KinesisWire:
    """
    The two calls on one stream; safe to share between threads.

    Args:
        stream_arn: the stream.
        connections: to the endpoint of the stream.
        signer: for that endpoint.
        credentials: botocore's, which renew themselves.
        caller: User-Agent, attempts and time.

    """

    def __init__(
        self,
        stream_arn: str,
        *,
        connections: HttpConnections,
        signer: RequestSigner,
        credentials: Credentials,
        caller: Caller,
    ) -> None:
        """Send nothing yet."""
        self._stream_arn = stream_arn
        self._connections = connections
        self._signer = signer
        self._credentials = credentials
        self._caller = caller
        self._repeats = _RepeatQuota()

    def get_records(self, iterator: str, *, limit: int) -> RecordsPage:
        """
        Read a page.

        Raises:
            ClientError: the service refused.
            HTTPClientError, ConnectionError: no answer, or no connection.
            UnreadableAnswer: an answer that is none.

        """
        body = msgspec.json.encode(_GetRecords(iterator, limit, self._stream_arn))
        return decode_page(self.call("GetRecords", body))

    def put_records(self, entries: Sequence[PutEntry]) -> list[PutOutcome]:
        """
        Write a batch; one outcome per entry, in order.

        Raises:
            ClientError: the service refused the whole.
            HTTPClientError, ConnectionError: no answer, or no connection.
            UnreadableAnswer: an answer that is none.

        """
        answer = self.call("PutRecords", encode_put_records(self._stream_arn, entries))
        try:
            return decode_put_records(bytes(answer))
        except ValueError as error:
            raise UnreadableAnswer(f"PutRecords: the answer cannot be read: {error}") from error

    def call(self, operation: str, body: bytes) -> bytes | bytearray:
        """
        Make one call, repeated as often as the caller wants, and return the answer's body.

        Raises:
            ClientError: the service refused.
            HTTPClientError, ConnectionError: no answer, or no connection.

        """
        spent = 0
        for attempt in range(1, self._caller.attempts + 1):
            failure: Exception
            try:
                answer = self._send(operation, body)
            except (HTTPClientError, ConnectionError) as error:
                failure = error
            else:
                if answer.status == _OK:
                    self._repeats.give_back(spent or 1)
                    return answer.body
                failure = _refusal(operation, answer)
            cost = _TIMEOUT_COST if _is_timeout(failure) else _COST
            last = attempt == self._caller.attempts
            if last or not _may_repeat(failure) or not self._repeats.take(cost):
                raise failure
            spent = cost
            pause_s = self._caller.time.chance() * 2 ** (attempt - 1)
            self._caller.time.sleep_s(min(pause_s, _BACK_OFF_MOST_S))
        raise AssertionError("there is at least one attempt")

    def close(self) -> None:
        """Close the connections that are kept."""
        self._connections.close()

    def _send(self, operation: str, body: bytes) -> HttpAnswer:
        headers = self._signer.headers(
            self._credentials.get_frozen_credentials(),
            target=f"{_TARGET}.{operation}",
            body=body,
            now_s=self._caller.time.now_s(),
        )
        headers["user-agent"] = self._caller.user_agent
        headers["accept-encoding"] = "identity"
        return self._connections.post(headers, body)


OpenWire = Callable[[], KinesisWire | None]
"""Opens the wire when called first; None says that botocore's client must do."""


class _RepeatQuota:
    """How many repeats are left: a service in trouble is not asked ever more often."""

    def __init__(self) -> None:
        self._left = _QUOTA
        self._lock = Lock()

    def take(self, cost: int) -> bool:
        with self._lock:
            if cost > self._left:
                return False
            self._left -= cost
            return True

    def give_back(self, amount: int) -> None:
        if self._left < _QUOTA:
            with self._lock:
                self._left = min(_QUOTA, self._left + amount)


def open_wire(
    stream_arn: str,
    *,
    client: KinesisClient,
    session: Session,
    when: WireTime | None = None,
) -> KinesisWire | None:
    """
    Return the wire that does as the client would, None if it cannot.

    Args:
        stream_arn: the stream.
        client: whose endpoint, region, time-outs, attempts and proxies are taken over.
        session: the client's, for credentials and the certificates to trust.
        when: time; the system's if None.

    Raises:
        BotoCoreError: no credentials, no region, or no endpoint.

    """
    config: Any = client.meta.config
    # Resolves the endpoint by botocore's rules, which may depend on the stream's account.
    example = {"StreamARN": stream_arn, "ShardIterator": "-"}
    url = urlsplit(client.generate_presigned_url("get_records", Params=example))
    signed = parse_qs(url.query).get("X-Amz-Credential", [""])[0].split("/")
    credentials = session.get_credentials()
    proxy_url = _proxy_url(f"{url.scheme}://{url.netloc}", config.proxies)
    if (
        credentials is None
        or url.hostname is None
        or url.path not in ("", "/")
        or len(signed) != _CREDENTIAL_PARTS
        or config.proxies_config
        or config.client_cert
        or (proxy_url and urlsplit(proxy_url).scheme != "http")
    ):
        return None
    endpoint = _endpoint(url, config, session=session, proxy_url=proxy_url)
    return KinesisWire(
        stream_arn,
        connections=HttpConnections(endpoint),
        signer=RequestSigner(Scope(endpoint.authority, signed[2], signed[3])),
        credentials=credentials,
        caller=Caller(
            user_agent=config.user_agent,
            attempts=(config.retries or {}).get("total_max_attempts", _ATTEMPTS),
            time=when or WireTime(),
        ),
    )


def _endpoint(url: SplitResult, config: Any, *, session: Session, proxy_url: str) -> Endpoint:
    tls = _tls(session) if url.scheme == "https" else None
    return Endpoint(
        host=url.hostname or "",
        port=url.port or (80 if tls is None else 443),
        tls=tls,
        proxy=_proxy(proxy_url),
        connect_timeout_s=config.connect_timeout,
        read_timeout_s=config.read_timeout,
        connections=config.max_pool_connections,
    )


def _proxy_url(url: str, configured: dict[str, str] | None) -> str:
    """Return the proxy for a URL as botocore chooses it: configured, or of the environment."""
    proxies = configured or get_environ_proxies(url)
    found = proxies.get(urlsplit(url).scheme) or ""
    return found if not found or "//" in found else f"http://{found}"


def _proxy(url: str) -> Proxy | None:
    if not url:
        return None
    found = urlsplit(url)
    authorization = ""
    if found.username is not None:
        name = f"{unquote(found.username)}:{unquote(found.password or '')}"
        authorization = f"Basic {base64.b64encode(name.encode()).decode()}"
    return Proxy(found.hostname or "", found.port or 80, authorization)


def _tls(session: Session) -> ssl.SSLContext:
    """Return what certificates to trust: AWS_CA_BUNDLE, REQUESTS_CA_BUNDLE, or botocore's own."""
    bundle = session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
    return ssl.create_default_context(cafile=bundle or get_cert_path(verify=True))


def _refusal(operation: str, answer: HttpAnswer) -> ClientError:
    """Return the error that a service's refusal is, read by botocore."""
    response = {
        "body": bytes(answer.body),
        "headers": answer.headers,
        "status_code": answer.status,
    }
    # An error's body is read without a shape.
    parsed: Any = create_parser("json").parse(response, None)  # type: ignore[arg-type]
    return ClientError(parsed, operation)


def _may_repeat(failure: Exception) -> bool:
    """Tell whether a repeat may help: botocore's TransientRetryableChecker and throttling."""
    if not isinstance(failure, ClientError):
        return True
    answer: Any = failure.response
    code = answer.get("Error", {}).get("Code", "")
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status in _TRANSIENT or code in _TRANSIENT_CODES or code in THROTTLING_CODES


def _is_timeout(failure: Exception) -> bool:
    return isinstance(failure, ConnectTimeoutError | ReadTimeoutError)
