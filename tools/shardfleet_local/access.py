"""
Who may call a server of ours on the loopback interface: its own user, and nobody else.

Loopback keeps other machines out. It keeps out neither other users of this machine, who may open
any port, nor the web pages in its browsers, which may send requests to 127.0.0.1 or to a name of
their own that points there. So each server has a door:

* `Host` must be the server's own, against names that point here (DNS rebinding);
* `Origin` must not be there: no browser leaves it out of what a foreign page sends with a body;
* the access key id of the AWS signature must be one that was drawn for this server. It is the
  secret: 160 bits, compared in constant time, and written neither to logs nor to command lines.
  Who starts a server in the same folder again and again may keep it (`key_of_folder`).

The signature itself is not checked: it would cost a hash of each body, 0.3 ms for half a megabyte
of PutRecords, and say nothing more. Who can read what goes over loopback, or this user's
environment, is this user or root.
"""

import base64
import contextlib
import hmac
import os
import re
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shardfleet.errors import ConfigurationError

_KEY_BYTES: Final = 20
"""Of a key id: 32 letters of Base32 behind its four, of the 128 that IAM allows (AccessKeyId)."""

_SEED_BYTES: Final = 32

_CREDENTIAL: Final = re.compile(r"AWS4-HMAC-SHA256 Credential=([A-Z0-9]{16,128})/", re.ASCII)
"""How every SDK's signature begins (AWS: Signature Version 4, Authorization header)."""

NOT_ITS_KEY: Final = (
    "The access key id is not this server's: take the AWS_ variables that its start printed "
    "(`shardfleet local up`, run again in another shell, prints those of the one that runs)."
)

Headers = Collection[tuple[str, str]]
"""Names in lower case, and values; a header that came twice is there twice."""


def drawn_key_id(prefix: str = "AKIA") -> str:
    """Return an access key id that nobody can guess; ASIA is the prefix of a session's."""
    return prefix + base64.b32encode(secrets.token_bytes(_KEY_BYTES)).decode()


def drawn_secret() -> str:
    """Return a secret access key, or a session's token."""
    return secrets.token_urlsafe(30)


@dataclass(frozen=True, slots=True)
class AccessKey:
    """An access key, which a representation of does not tell."""

    id: str = field(repr=False, default_factory=drawn_key_id)
    secret: str = field(repr=False, default_factory=drawn_secret)

    def environment(self) -> dict[str, str]:
        """Return the variables in which every SDK looks for it."""
        return {"AWS_ACCESS_KEY_ID": self.id, "AWS_SECRET_ACCESS_KEY": self.secret}

    def authorization(self) -> str:
        """Return the header of a request that is made without an SDK."""
        return f"AWS4-HMAC-SHA256 Credential={self.id}/"


def key_of_folder(folder: Path, *, seed_file: Path) -> AccessKey:
    """
    Return a folder's access key, the same each time: for what is started there again and again.

    Args:
        folder: whose key it is.
        seed_file: has the secret that all such keys of this user come of; it is made if need be,
            for this user alone.

    Raises:
        ConfigurationError: others may read that file, or it is none of ours.

    """
    seed_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        made = os.open(seed_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(made, "wb") as file:
            file.write(secrets.token_bytes(_SEED_BYTES))
    seed = seed_file.read_bytes()
    if len(seed) != _SEED_BYTES or seed_file.stat().st_mode & 0o077:
        raise ConfigurationError(
            f"{seed_file}: {_SEED_BYTES} bytes that only this user can read are expected; delete it"
        )

    def drawn(what: str) -> bytes:
        return hmac.digest(seed, f"{what}:{folder.resolve()}".encode(), "sha256")

    key_id = base64.b32encode(drawn("id")[:_KEY_BYTES]).decode()
    secret = base64.urlsafe_b64encode(drawn("secret")).decode().rstrip("=")
    return AccessKey(f"AKIA{key_id}", secret)


class Door:
    """
    The door of one server.

    Args:
        port: where it listens.
        key: that opens it.
        tls_port: where it listens as well, with TLS; 0: nowhere.

    """

    def __init__(self, port: int, key: AccessKey, *, tls_port: int = 0) -> None:
        ports = (port, tls_port) if tls_port else (port,)
        self._hosts = tuple(f"{host}:{at}" for at in ports for host in ("127.0.0.1", "localhost"))
        self._names = frozenset(("host", host) for host in self._hosts)
        self._key = key.id.encode()

    def astray(self, headers: Headers) -> str:
        """Return why a request is not meant for this server, or is a web page's; "" if neither."""
        named = [each for each in headers if each[0] in ("host", "origin")]
        if len(named) == 1 and named[0] in self._names:
            return ""
        return (
            f"Host must be {' or '.join(self._hosts)}, and there must be no Origin: "
            "no web page may call this server."
        )

    def refusal(self, headers: Headers, *, issued: Callable[[str], bool] | None = None) -> str:
        """
        Return why a request must not be served; "" if it may be.

        Args:
            headers: of the request.
            issued: tells of another access key id whether it was given out by this server.

        """
        signed = [value for name, value in headers if name == "authorization"]
        found = _CREDENTIAL.match(signed[0]) if len(signed) == 1 else None
        return self.astray(headers) or (
            ""
            if found and (self.is_own(found[1]) or (issued is not None and issued(found[1])))
            else NOT_ITS_KEY
        )

    def is_own(self, key_id: str) -> bool:
        """Return whether this is the key that opens the door."""
        return hmac.compare_digest(key_id.encode(), self._key)
