"""
One JSON service of AWS without the SDK's machinery: signed, sent once, and refusals as botocore's.

botocore stays for what is subtle and rare: credentials, the endpoint's rules, and what an error's
body means. What this cannot do exactly as botocore would (an endpoint with a path, a proxy, another
way of signing) it leaves to botocore: :func:`open_service` then returns None.
"""

from __future__ import annotations

import os
import ssl
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import parse_qs, urlsplit

import msgspec

from shardfleet.adapters.http import cbor
from shardfleet.adapters.http.answers import OK, HttpAnswer, instant_of
from shardfleet.adapters.http.connections import (
    IDLE_MS,
    Endpoint,
    HttpConnections,
    SentRequest,
)
from shardfleet.adapters.http.sigv4 import Keys, RequestSigner
from shardfleet.domain.refusals import RefusalKind, refusal_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from botocore.session import Session

# Of a credential: key id, day, region, service, "aws4_request".
_CREDENTIAL_PARTS = 5
# A signature is refused that is five minutes off (fact I13). As the SDK for Java 2 does it
# (``ClockSkew``): from four minutes on it is the clock; more than a day is nobody's clock.
CLOCK_OFF_S = 240
_CLOCK_OFF_MOST_S = 86_400


class Service(NamedTuple):
    """
    A service of AWS, as botocore's model of it has it.

    Attributes:
        name: that signs, and of the endpoint.
        target: in ``X-Amz-Target``, before the operation.
        json_version: of its protocol.
        variable: its part of the variables that name endpoints, in lower case; empty: its name.

    """

    name: str
    target: str
    json_version: str
    variable: str = ""


class JsonEndpoint(NamedTuple):
    """
    Where a service is.

    Attributes:
        service: which.
        url: of its endpoint, without a path.
        region: that signs.
        bundle: file of the certificates to trust.

    """

    service: Service
    url: str
    region: str
    bundle: str


class Limits(NamedTuple):
    """
    How a service is called.

    Attributes:
        connections: kept open at most.
        connect_timeout_s: for connecting.
        read_timeout_s: for the longest silence.
        idle_ms: a connection unused for longer is not used again.

    """

    connections: int
    connect_timeout_s: float
    read_timeout_s: float
    idle_ms: int


class Credentials(Protocol):
    """Botocore's, which renew themselves, or what is like them."""

    def get_frozen_credentials(self) -> Keys:
        """Return the keys of now."""


class JsonService:
    """
    One endpoint of a service; safe to share between threads.

    Args:
        site: where it is.
        limits: how it is called.
        credentials: of the caller.
        user_agent: of the requests.
        client: returns the SDK's, whose model is taken for refusals.
        clock_s: epoch seconds; what it is off by is learnt from whoever refuses a signature.

    Attributes:
        site: where it is.
        endpoint: how it is reached.

    """

    def __init__(
        self,
        site: JsonEndpoint,
        limits: Limits,
        *,
        credentials: Credentials,
        user_agent: str,
        client: Callable[[], Any],
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        """Send nothing yet."""
        url, service = urlsplit(site.url), site.service
        tls = None
        if url.scheme == "https":
            tls = trusting(site.bundle)
        self.site = site
        self.endpoint = endpoint = Endpoint(
            host=str(url.hostname),
            port=url.port or (80 if tls is None else 443),
            tls=tls,
            connect_timeout_s=limits.connect_timeout_s,
            read_timeout_s=limits.read_timeout_s,
            connections=limits.connections,
            idle_s=limits.idle_ms / 1000,
        )
        self._connections = HttpConnections(endpoint)
        self._signer = RequestSigner(
            endpoint.authority,
            region=site.region,
            service=service.name,
            json_version=service.json_version,
        )
        self._credentials = credentials
        # botocore's that expire have this; to renew them takes a call to somebody.
        self._must_renew = getattr(credentials, "refresh_needed", bool)
        self._target = service.target
        self._user_agent = user_agent
        self._client = client
        self._clock_s = clock_s
        self._behind_s = 0.0  # of the service's clock, replaced as a whole

    def post(self, operation: str, body: bytes, *, content_type: str | None = None) -> HttpAnswer:
        """
        Send one request, once, and return the answer, whatever its status.

        Args:
            operation: its name.
            body: of the request.
            content_type: of the body; None: the service's JSON.

        Raises:
            HTTPClientError, ConnectionError: no answer, or no connection.

        """
        return self._connections.post(self.headers(operation, body, content_type), body)

    def send(self, operation: str, body: bytes) -> SentRequest | None:
        """
        Send one request, once, without waiting for anything.

        Returns:
            None: that cannot be, for no connection is kept or credentials are to be renewed; then
            ``post`` can.

        """
        if self._must_renew():
            return None
        return self._connections.send(self.headers(operation, body, None), body)

    def call(
        self, operation: str, body: bytes, *, content_type: str | None = None
    ) -> bytes | bytearray:
        """
        Send one request, once, and return the answer's body.

        Args:
            operation: its name.
            body: of the request.
            content_type: of the body, and so of the answer's; None: the service's JSON.

        Raises:
            ClientError: the service refused.
            HTTPClientError, ConnectionError: no answer, or no connection.

        """
        return self.body_of(operation, self.post(operation, body, content_type=content_type))

    def body_of(self, operation: str, answer: HttpAnswer) -> bytes | bytearray:
        """
        Return an answer's body.

        Raises:
            ClientError: the service refused.

        """
        if answer.status != OK:
            from botocore.exceptions import ClientError  # noqa: PLC0415 - see connections.py

            raise ClientError(self.refusal(answer), operation)  # type: ignore[arg-type]
        return answer.body

    def headers(
        self, operation: str, body: bytes, content_type: str | None = None
    ) -> dict[str, str]:
        """Return the headers of a request that is sent now, signed."""
        headers = self._signer.headers(
            self._credentials.get_frozen_credentials(),
            target=f"{self._target}.{operation}",
            body=body,
            now_s=self._clock_s() + self._behind_s,
            content_type=content_type,
        )
        headers["user-agent"] = self._user_agent
        headers["accept-encoding"] = "identity"
        return headers

    def refusal(self, answer: HttpAnswer) -> dict[str, Any]:
        """Return what a refusal says, read by botocore: without a shape first."""
        parsed = self.parsed(answer, None)
        code = parsed.get("Error", {}).get("Code")
        if refusal_of(str(code), answer.status) is RefusalKind.UNTRUSTED:
            self._learn_clock(answer)
        model = self._client().meta.service_model
        shape = model.shape_for_error_code(code)
        return parsed if shape is None else {**parsed, **self.parsed(answer, shape)}

    def _learn_clock(self, answer: HttpAnswer) -> None:
        """Take the clock of who refused a signature, where ours is far from it (RFC 9110, Date)."""
        try:
            stated = instant_of(answer.headers.get("date", ""))
        except ValueError:
            return
        behind_s = stated.timestamp() - self._clock_s()
        is_far = abs(behind_s - self._behind_s) >= CLOCK_OFF_S
        if is_far and abs(behind_s) <= _CLOCK_OFF_MOST_S:
            self._behind_s = behind_s if abs(behind_s) >= CLOCK_OFF_S else 0.0

    def parsed(self, answer: HttpAnswer, shape: object) -> dict[str, Any]:
        """
        Return what botocore makes of an answer.

        Raises:
            ResponseParserError: nothing.

        """
        from botocore.parsers import create_parser  # noqa: PLC0415 - see connections.py

        response: Mapping[str, Any] = {
            "body": _in_json(bytes(answer.body)),
            "headers": answer.headers,
            "status_code": answer.status,
        }
        parser: Any = create_parser("json")
        read: dict[str, Any] = parser.parse(response, shape)
        return read

    def close(self) -> None:
        """Close the connections that are kept."""
        self._connections.close()


def open_service(
    client: Any, session: Session, *, example: tuple[str, dict[str, Any]], idle_ms: int = IDLE_MS
) -> JsonService | None:
    """
    Return the service as the client would call it, None if that cannot be.

    Args:
        client: whose endpoint, region and time-outs are taken over.
        session: the client's, for credentials and the certificates to trust.
        example: method of the client, and parameters by which botocore chooses the endpoint.
        idle_ms: a connection unused for longer is not used again.

    Raises:
        BotoCoreError: no credentials, no region, or no endpoint.

    """
    from botocore.utils import get_environ_proxies  # noqa: PLC0415 - see connections.py

    config: Any = client.meta.config
    # Resolves the endpoint by botocore's rules, which may depend on the account.
    url = urlsplit(client.generate_presigned_url(example[0], Params=example[1]))
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
    ):
        return None
    metadata = client.meta.service_model.metadata
    site = JsonEndpoint(
        Service(signed[3], metadata["targetPrefix"], metadata["jsonVersion"]),
        f"{url.scheme}://{url.netloc}",
        signed[2],
        _bundle(session),
    )
    connections = config.max_pool_connections
    return JsonService(
        site,
        Limits(connections, config.connect_timeout, config.read_timeout, idle_ms),
        credentials=credentials,
        user_agent=config.user_agent,
        client=lambda: client,
    )


def _in_json(body: bytes) -> bytes:
    """Return a body in CBOR as the JSON that says the same, any other as it is."""
    if not cbor.is_cbor(body):
        return body
    try:
        return msgspec.json.encode(cbor.decode(body))
    except (ValueError, OverflowError):
        return b""  # What nobody can read says nothing: the status counts.


def _bundle(session: Session) -> str:
    """Return what certificates to trust: AWS_CA_BUNDLE, REQUESTS_CA_BUNDLE, or botocore's own."""
    from botocore.httpsession import get_cert_path  # noqa: PLC0415 - see connections.py

    given = session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
    return str(given or get_cert_path(verify=True))


def trusting(file: str, *protocols: str) -> ssl.SSLContext:
    """Return what trusts the certificates in a file, and offers protocols (ALPN), if any."""
    return _trusting(file, Path(file).stat().st_mtime_ns, protocols)


@cache
def _trusting(file: str, _changed_ns: int, protocols: tuple[str, ...]) -> ssl.SSLContext:
    """Read the certificates once for all services: that takes as long as to make a client."""
    context = ssl.create_default_context(cafile=file)
    if protocols:
        context.set_alpn_protocols(protocols)
    return context
