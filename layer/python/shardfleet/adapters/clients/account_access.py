"""
Clients of an account that is named by options instead of by the environment.

A Spark job reads one account's stream and writes another's: each side has its own region,
endpoint and role. An assumed role's credentials are renewed by the SDK before they expire.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import boto3
import botocore.session
from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials

from shardfleet.adapters.clients.aws_clients import WRITE_TIMEOUT_S, client_config, region_of
from shardfleet.adapters.kinesis.wire import OpenWire, open_wire
from shardfleet.errors import ConfigurationError

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient
    from mypy_boto3_kinesis.client import KinesisClient
    from mypy_boto3_s3.client import S3Client

# A PutRecords request or a GetRecords answer has up to 10 MiB (Kinesis quota).
RECORDS_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """
    Whom to ask, and as whom.

    Attributes:
        region: empty: the environment's.
        endpoint: URL of all services; empty: AWS's own (or the environment's).
        role_arn: role to assume; empty: none, the default credential chain as it is.
        role_session_name: of the assumed role's session.
        role_external_id: that the role's trust asks for; empty: none.
        connections: kept open by each client.

    """

    region: str = ""
    endpoint: str = ""
    role_arn: str = ""
    role_session_name: str = "shardfleet"
    role_external_id: str = ""
    connections: int = 8


class AccountClients:
    """
    Clients of one account, made when asked for; safe to share between threads.

    Args:
        access: whom to ask.
        stream: name or ARN of a stream; its region counts if ``access`` names none.

    Raises:
        ConfigurationError: no region is known.

    """

    def __init__(self, access: Access, *, stream: str = "") -> None:
        self._access = access
        region = access.region or region_of(stream) or None
        self._session = _session(access, region=region)
        if self._session.region_name is None:
            raise ConfigurationError(
                "no AWS region is known: name one in option region, or set AWS_REGION"
            )

    @property
    def region(self) -> str:
        """The region of all clients."""
        return str(self._session.region_name)

    def stream_records(self) -> KinesisClient:
        """Make a client for records: sends once, because its callers repeat."""
        once = client_config(self._access.connections, attempts=1, read_timeout_s=RECORDS_TIMEOUT_S)
        return self._session.client("kinesis", endpoint_url=self._endpoint, config=once)

    def wire_to(self, stream_arn: str, client: KinesisClient) -> OpenWire:
        """
        Return what opens the quick way for GetRecords and PutRecords, once.

        Args:
            stream_arn: the stream.
            client: of :meth:`stream_records`, whose settings are taken over.

        """
        session = self._session._session  # noqa: SLF001 - boto3 has no other way to it.
        return cache(partial(open_wire, stream_arn, client=client, session=session))

    def stream_control(self) -> KinesisClient:
        """Make a client for everything else about streams."""
        return self._session.client("kinesis", endpoint_url=self._endpoint, config=self._config())

    def dynamodb(self) -> DynamoDBClient:
        """Make a client for tables."""
        return self._session.client("dynamodb", endpoint_url=self._endpoint, config=self._config())

    def lease_writes(self) -> DynamoDBClient:
        """Make a client for writing leases: sends once (hazard H1)."""
        once = client_config(self._access.connections, attempts=1, read_timeout_s=WRITE_TIMEOUT_S)
        return self._session.client("dynamodb", endpoint_url=self._endpoint, config=once)

    def s3(self) -> S3Client:
        """Make a client for buckets."""
        return self._session.client("s3", endpoint_url=self._endpoint, config=self._config())

    def cloudwatch(self) -> Any:
        """Make a client for metrics."""
        return self._session.client(
            "cloudwatch", endpoint_url=self._endpoint, config=self._config()
        )

    def stream_arn(self, stream: str) -> str:
        """
        Return a stream's ARN.

        Raises:
            ConfigurationError: there is no such stream.

        """
        if stream.startswith("arn:"):
            return stream
        control = self.stream_control()
        try:
            found = control.describe_stream_summary(StreamName=stream)
        except control.exceptions.ResourceNotFoundException as error:
            raise ConfigurationError(
                f"option stream = {stream!r}: there is no such stream in {self.region}"
            ) from error
        return found["StreamDescriptionSummary"]["StreamARN"]

    @property
    def _endpoint(self) -> str | None:
        return self._access.endpoint or None

    def _config(self) -> Any:
        return client_config(self._access.connections)


def _session(access: Access, *, region: str | None) -> boto3.session.Session:
    plain = boto3.session.Session(region_name=region)
    if not access.role_arn:
        return plain
    source = plain._session  # noqa: SLF001 - boto3 offers no way to the session it wraps.
    extra = {"RoleSessionName": access.role_session_name}
    if access.role_external_id:
        extra["ExternalId"] = access.role_external_id

    def client_creator(service: str, **arguments: Any) -> Any:
        endpoint = access.endpoint or None
        return source.create_client(service, endpoint_url=endpoint, **arguments)

    fetcher = AssumeRoleCredentialFetcher(
        client_creator=client_creator,
        source_credentials=source.get_credentials(),
        role_arn=access.role_arn,
        extra_args=extra,
    )
    assumed: Any = botocore.session.Session()
    assumed._credentials = DeferredRefreshableCredentials(  # noqa: SLF001 - the SDK's own way in.
        method="assume-role", refresh_using=fetcher.fetch_credentials
    )
    return boto3.session.Session(botocore_session=assumed, region_name=plain.region_name)
