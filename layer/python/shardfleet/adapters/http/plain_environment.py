"""
What of the SDK's settings an environment says by itself: region, keys, endpoints, certificates.

To load botocore and make its clients takes longer than everything else at a worker's start, and in
a Lambda function they come to what a few variables say. Only an environment of which every variable
is known here is judged so; any other, a configuration file, a proxy or another partition is left to
botocore. That both come to the same is tested (tests/adapters/test_plain_environment.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from shardfleet.adapters.http.json_service import JsonEndpoint, JsonService, Limits, Service

# Of the partition "aws" (botocore's partitions.json).
_REGION = re.compile(r"(us|eu|ap|sa|ca|me|af|il|mx)-\w+-\d+")
_SUFFIX = "amazonaws.com"
_ENDPOINT = "AWS_ENDPOINT_URL"
# What else begins with AWS_ may change what botocore does.
_HARMLESS = frozenset(
    {
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
        *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE", _ENDPOINT),
        *("AWS_EXECUTION_ENV", "AWS_EC2_METADATA_DISABLED"),
    }
)
_HARMLESS_BEGINNINGS = ("AWS_LAMBDA_", "AWS_XRAY_", f"{_ENDPOINT}_")
_FILES = ("config", "credentials")
_ARN_PARTS = 6
_ACCOUNT = re.compile(r"[0-9]{12}")


class FixedKeys(NamedTuple):
    """Credentials as botocore's, which never change."""

    access_key: str
    secret_key: str
    token: str | None

    def get_frozen_credentials(self) -> FixedKeys:
        """Return them."""
        return self


KINESIS = Service("kinesis", "Kinesis_20131202", "1.1")
DYNAMODB = Service("dynamodb", "DynamoDB_20120810", "1.0")
STATES = Service("states", "AWSStepFunctions", "1.0", "sfn")


class PlainEnvironment(NamedTuple):
    """
    What counts of an environment.

    Attributes:
        region: of the session.
        keys: its credentials.
        endpoints: URLs by the name of a service, and of all others by "".
        bundle: file of the certificates to trust.
        user_agent: of the requests.

    """

    region: str
    keys: FixedKeys
    endpoints: Mapping[str, str]
    bundle: str
    user_agent: str

    def of_region(self, service: Service, region: str | None = None) -> JsonEndpoint | None:
        """Return where a service is in a region (None: the session's); None: botocore knows."""
        region = region or self.region
        if not _REGION.fullmatch(region):
            return None
        url = self._endpoint(service) or f"https://{service.name}.{region}.{_SUFFIX}"
        return JsonEndpoint(service, url, region, self.bundle)

    def stream(self, stream_arn: str, kind: Literal["data", "control"]) -> JsonEndpoint | None:
        """Return where calls of a kind on a stream go, None if only botocore knows."""
        parts = stream_arn.split(":")
        if len(parts) != _ARN_PARTS or parts[1] != "aws":
            return None
        region, account = parts[3:5]
        if not _REGION.fullmatch(region) or not _ACCOUNT.fullmatch(account):
            return None
        own = f"https://{account}.{kind}-kinesis.{region}.{_SUFFIX}"
        return JsonEndpoint(KINESIS, self._endpoint(KINESIS) or own, region, self.bundle)

    def open(
        self, endpoint: JsonEndpoint, client: Callable[[], Any], limits: Limits
    ) -> JsonService:
        """Return a service that is called with these keys; the SDK's client reads refusals."""
        return JsonService(
            endpoint, limits, credentials=self.keys, user_agent=self.user_agent, client=client
        )

    def _endpoint(self, service: Service) -> str | None:
        return self.endpoints.get(service.variable or service.name) or self.endpoints.get("")


def plain_environment(env: Mapping[str, str]) -> PlainEnvironment | None:
    """Return what an environment says by itself, None if only botocore can tell."""
    given = {name: value for name, value in env.items() if value}
    names = [name for name in given if name.startswith("AWS_") and name not in _HARMLESS]
    home = Path(given.get("HOME", "")) / ".aws"
    region = given.get("AWS_DEFAULT_REGION", "")
    endpoints = _endpoints(given)
    bundle = given.get("AWS_CA_BUNDLE") or given.get("REQUESTS_CA_BUNDLE") or _usual_bundle()
    if (
        "AWS_ACCESS_KEY_ID" not in given
        or "AWS_SECRET_ACCESS_KEY" not in given
        or not _REGION.fullmatch(region)
        or not all(name.startswith(_HARMLESS_BEGINNINGS) for name in names)
        or any(_names_a_proxy(name) or name.startswith("BOTO") for name in given)
        or any((home / name).exists() for name in _FILES)
        or not all(_is_plain(url) for url in endpoints.values())
        or bundle is None
    ):
        return None
    keys = FixedKeys(
        given["AWS_ACCESS_KEY_ID"],
        given["AWS_SECRET_ACCESS_KEY"],
        given.get("AWS_SESSION_TOKEN"),
    )
    runs_in = given.get("AWS_EXECUTION_ENV")
    agent = "lib/shardfleet" + (f" exec-env/{runs_in}" if runs_in else "")
    return PlainEnvironment(region, keys, endpoints, bundle, agent)


def _names_a_proxy(variable: str) -> bool:
    """Return whether a variable names a proxy; one that names what needs none does nothing else."""
    name = variable.lower()
    return name.endswith("_proxy") and name != "no_proxy"


def _endpoints(given: Mapping[str, str]) -> dict[str, str]:
    own = {
        name.removeprefix(f"{_ENDPOINT}_").lower(): url
        for name, url in given.items()
        if name.startswith(f"{_ENDPOINT}_")
    }
    return {"": given[_ENDPOINT], **own} if _ENDPOINT in given else own


def _is_plain(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    plain = parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/")
    return bool(plain) and not (parts.query or parts.fragment or "@" in parts.netloc)


def _usual_bundle() -> str | None:
    """Return the file that botocore trusts (``httpsession.where``), without loading it."""
    for package in ("certifi", "botocore"):
        found = find_spec(package)
        if found is not None and found.origin is not None:
            return str(Path(found.origin).with_name("cacert.pem"))
    return None
