"""
GetRecords and PutRecords without the SDK's machinery: the thin way for the two busy calls.

botocore stays for what is subtle and rare: credentials, the endpoint's rules, and what an error's
body means. What this cannot do exactly as botocore would (an endpoint with a path, a proxy, another
way of signing, repeats) it leaves to botocore: :func:`open_wire` then returns None, and the caller
uses its client.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import msgspec
from botocore.exceptions import ClientError
from botocore.httpsession import get_cert_path
from botocore.parsers import create_parser
from botocore.utils import get_environ_proxies

from shardfleet.adapters.http.connections import IDLE_MS, Endpoint, HttpAnswer, HttpConnections
from shardfleet.adapters.http.sigv4 import RequestSigner
from shardfleet.adapters.kinesis.decode import UnreadableAnswer, decode_page
from shardfleet.adapters.kinesis.put_records_body import decode_put_records, encode_put_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botocore.credentials import Credentials
    from botocore.session import Session
    from mypy_boto3_kinesis.client import KinesisClient

    from shardfleet.domain.reading.pages import RecordsPage
    from shardfleet.engine.ports import PutOutcome
    from shardfleet.kpl.packing import OutgoingRecord

_TARGET = "Kinesis_20131202"
_OK = 200
# Of a credential: key id, day, region, service, "aws4_request".
_CREDENTIAL_PARTS = 5


class _GetRecords(msgspec.Struct):
    """``GetRecordsInput``."""

    ShardIterator: str
    Limit: int
    StreamARN: str


class KinesisWire:
    """
    The two calls on one stream; safe to share between threads.

    Args:
        stream_arn: the stream.
        connections: to the endpoint of the stream.
        signer: for that endpoint.
        credentials: botocore's, which renew themselves.
        user_agent: the SDK's.

    """

    def __init__(
        self,
        stream_arn: str,
        *,
        connections: HttpConnections,
        signer: RequestSigner,
        credentials: Credentials,
        user_agent: str,
    ) -> None:
        """Send nothing yet."""
        self._stream_arn = stream_arn
        self._connections = connections
        self._signer = signer
        self._credentials = credentials
        self._user_agent = user_agent

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

    def put_records(self, entries: Sequence[OutgoingRecord]) -> list[PutOutcome]:
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
            kind = type(error).__name__
            raise UnreadableAnswer(f"PutRecords: the answer cannot be read: {kind}") from None

    def call(self, operation: str, body: bytes) -> bytes | bytearray:
        """
        Send one request and return the answer's body.

        Raises:
            ClientError: the service refused.
            HTTPClientError, ConnectionError: no answer, or no connection.

        """
        headers = self._signer.headers(
            self._credentials.get_frozen_credentials(),
            target=f"{_TARGET}.{operation}",
            body=body,
            now_s=time.time(),
        )
        headers["user-agent"] = self._user_agent
        headers["accept-encoding"] = "identity"
        answer = self._connections.post(headers, body)
        if answer.status != _OK:
            raise _refusal(operation, answer)
        return answer.body

    def close(self) -> None:
        """Close the connections that are kept."""
        self._connections.close()


OpenWire = Callable[[], KinesisWire | None]
"""Opens the wire when called first; None says that botocore's client must do."""


def open_wire(
    stream_arn: str, *, client: KinesisClient, session: Session, idle_ms: int = IDLE_MS
) -> KinesisWire | None:
    """
    Return the wire that does as the client would, None if it cannot.

    Args:
        stream_arn: the stream.
        client: whose endpoint, region and time-outs are taken over.
        session: the client's, for credentials and the certificates to trust.
        idle_ms: a connection unused for longer is not used again.

    Raises:
        BotoCoreError: no credentials, no region, or no endpoint.

    """
    config: Any = client.meta.config
    # Resolves the endpoint by botocore's rules, which may depend on the stream's account.
    example = {"StreamARN": stream_arn, "ShardIterator": "-"}
    url = urlsplit(client.generate_presigned_url("get_records", Params=example))
    signed = parse_qs(url.query).get("X-Amz-Credential", [""])[0].split("/")
    credentials = session.get_credentials()
    proxies = config.proxies or get_environ_proxies(f"{url.scheme}://{url.netloc}")
    if (
        credentials is None
        or url.hostname is None
        or url.path not in ("", "/")
        or len(signed) != _CREDENTIAL_PARTS
        or proxies.get(url.scheme)
        or config.client_cert
        or (config.retries or {}).get("total_max_attempts") != 1
    ):
        return None
    tls = _tls(session) if url.scheme == "https" else None
    endpoint = Endpoint(
        host=url.hostname,
        port=url.port or (80 if tls is None else 443),
        tls=tls,
        connect_timeout_s=config.connect_timeout,
        read_timeout_s=config.read_timeout,
        connections=config.max_pool_connections,
        idle_s=idle_ms / 1000,
    )
    return KinesisWire(
        stream_arn,
        connections=HttpConnections(endpoint),
        signer=RequestSigner(endpoint.authority, region=signed[2], service=signed[3]),
        credentials=credentials,
        user_agent=config.user_agent,
    )


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
