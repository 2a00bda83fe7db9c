"""
Signatures (AWS Signature Version 4) for one kind of request: a POST to ``/`` of a JSON service.

The signing key holds for a day, so it is derived once a day; what is left per request is two
hashes and one HMAC. Equal to botocore's signer (tests/adapters/test_sigv4.py). Rules: IAM User
Guide, "Create a signed AWS API request".
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime
from typing import Protocol

CONTENT_TYPE = "application/x-amz-json-"
_ALGORITHM = "AWS4-HMAC-SHA256"


class Keys(Protocol):
    """Credentials of one moment: botocore's frozen ones, or what is like them."""

    @property
    def access_key(self) -> str | None:
        """Return the id of the key."""

    @property
    def secret_key(self) -> str | None:
        """Return the key."""

    @property
    def token(self) -> str | None:
        """Return a session's token."""


class RequestSigner:
    """
    Signs the requests to one endpoint; safe to share between threads.

    Args:
        host: as in the Host header, with the port unless it is the scheme's own.
        region: that signs, e.g. ``eu-west-1``.
        service: that signs, e.g. ``kinesis``.
        json_version: of the service's protocol.

    """

    def __init__(self, host: str, *, region: str, service: str, json_version: str = "1.1") -> None:
        """Derive no key yet."""
        self._host = host
        self._content_type = CONTENT_TYPE + json_version
        self._scope = (region, service, "aws4_request")
        # (secret key, day, signing key), replaced as a whole: a race derives it twice, no more.
        self._day_key = ("", "", b"")
        # (second, what is written of it), replaced as a whole, too.
        self._second = (-1, "")

    def headers(
        self,
        credentials: Keys,
        *,
        target: str,
        body: bytes,
        now_s: float,
        content_type: str | None = None,
    ) -> dict[str, str]:
        """
        Return the headers of a request, those that are signed and the signature.

        Args:
            credentials: frozen.
            target: ``X-Amz-Target``, e.g. ``Kinesis_20131202.GetRecords``.
            body: of the request.
            now_s: epoch seconds.
            content_type: of the body; None: the service's JSON.

        """
        stamp = self._stamp(int(now_s))
        day = stamp[:8]
        assert credentials.access_key is not None
        assert credentials.secret_key is not None
        # In the order of their names, as the canonical request wants them.
        signed = {
            "content-type": content_type or self._content_type,
            "host": self._host,
            "x-amz-date": stamp,
        }
        if credentials.token:
            signed["x-amz-security-token"] = credentials.token.strip()
        signed["x-amz-target"] = target
        names = ";".join(signed)
        lines = "".join([f"{name}:{value}\n" for name, value in signed.items()])
        request = f"POST\n/\n\n{lines}\n{names}\n{hashlib.sha256(body).hexdigest()}"
        scope = "/".join((day, *self._scope))
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = f"{_ALGORITHM}\n{stamp}\n{scope}\n{digest}"
        key = self._key(credentials.secret_key, day)
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        signed["authorization"] = (
            f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, "
            f"SignedHeaders={names}, Signature={signature}"
        )
        return signed

    def _stamp(self, second: int) -> str:
        known, stamp = self._second
        if known != second:
            stamp = datetime.fromtimestamp(second, UTC).strftime("%Y%m%dT%H%M%SZ")
            self._second = (second, stamp)
        return stamp

    def _key(self, secret: str, day: str) -> bytes:
        of_secret, of_day, key = self._day_key
        if (of_secret, of_day) != (secret, day):
            key = f"AWS4{secret}".encode()
            for part in (day, *self._scope):
                key = hmac.digest(key, part.encode(), "sha256")
            self._day_key = (secret, day, key)
        return key
