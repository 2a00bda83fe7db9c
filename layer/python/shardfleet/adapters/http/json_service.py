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
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from botocore.exceptions import ClientError
from botocore.httpsession import get_cert_path
from botocore.parsers import create_parser
from botocore.utils import get_environ_proxies

from shardfleet.adapters.http.connections import IDLE_MS, Endpoint, HttpAnswer, HttpConnections
from shardfleet.adapters.http.sigv4 import RequestSigner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from botocore.client import BaseClient
    from botocore.credentials import Credentials
    from botocore.session import Session

OK = 200
# Of a credential: key id, day, region, service, "aws4_request".
_CREDENTIAL_PARTS = 5


class JsonService:
    """
    One endpoint of a service; safe to share between threads.

    Args:
        connections: to the endpoint.
        signer: for that endpoint.
        credentials: botocore's, which renew themselves.
        client: whose model and user agent are taken over.

    """

    def __init__(
        self,
        connections: HttpConnections,
        *,
        signer: RequestSigner,
        credentials: Credentials,
        client: BaseClient,
    ) -> None:
        """Send nothing yet."""
        self._connections = connections
        self._signer = signer
        self._credentials = credentials
        self._user_agent = client.meta.config.user_agent  # type: ignore[attr-defined]
        self._model = client.meta.service_model
        self._target = self._model.metadata["targetPrefix"]
        # An error's body is read without a shape first.
        self._parser: Any = create_parser("json")

    def post(self, operation: str, body: bytes) -> HttpAnswer:
        """
        Send one request, once, and return the answer, whatever its status.

        Raises:
            HTTPClientError, ConnectionError: no answer, or no connection.

        """
        headers = self._signer.headers(
            self._credentials.get_frozen_credentials(),
            target=f"{self._target}.{operation}",
            body=body,
            now_s=time.time(),
        )
        headers["user-agent"] = self._user_agent
        headers["accept-encoding"] = "identity"
        return self._connections.post(headers, body)

    def call(self, operation: str, body: bytes) -> bytes | bytearray:
        """
        Send one request, once, and return the answer's body.

        Raises:
            ClientError: the service refused.
            HTTPClientError, ConnectionError: no answer, or no connection.

        """
        answer = self.post(operation, body)
        if answer.status != OK:
            raise ClientError(self.refusal(answer), operation)  # type: ignore[arg-type]
        return answer.body

    def refusal(self, answer: HttpAnswer) -> dict[str, Any]:
        """Return what a refusal says, read by botocore."""
        parsed = self.parsed(answer, None)
        shape = self._model.shape_for_error_code(parsed.get("Error", {}).get("Code"))
        return parsed if shape is None else {**parsed, **self.parsed(answer, shape)}

    def parsed(self, answer: HttpAnswer, shape: object) -> dict[str, Any]:
        """
        Return what botocore makes of an answer.

        Raises:
            ResponseParserError: nothing.

        """
        response: Mapping[str, Any] = {
            "body": bytes(answer.body),
            "headers": answer.headers,
            "status_code": answer.status,
        }
        read: dict[str, Any] = self._parser.parse(response, shape)
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
    version = client.meta.service_model.metadata["jsonVersion"]
    signer = RequestSigner(
        endpoint.authority, region=signed[2], service=signed[3], json_version=version
    )
    connections = HttpConnections(endpoint)
    return JsonService(connections, signer=signer, credentials=credentials, client=client)


def _tls(session: Session) -> ssl.SSLContext:
    """Return what certificates to trust: AWS_CA_BUNDLE, REQUESTS_CA_BUNDLE, or botocore's own."""
    bundle = session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
    file: str = bundle or get_cert_path(verify=True)  # type: ignore[assignment]
    return _trusting(file, Path(file).stat().st_mtime_ns)


@cache
def _trusting(file: str, _changed_ns: int) -> ssl.SSLContext:
    """Read the certificates once for all services: that takes as long as to make a client."""
    return ssl.create_default_context(cafile=file)
