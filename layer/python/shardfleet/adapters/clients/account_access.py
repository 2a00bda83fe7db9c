"""
Clients of an account that is named by options instead of by the environment.

A Spark job reads one account's stream and writes another's: each side has its own region,
endpoint and role. An assumed role's credentials are renewed by the SDK before they expire.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from shardfleet.adapters.clients.aws_clients import (
    AwsClients,
    ConnectionLimits,
    region_of,
)
from shardfleet.adapters.http.plain_environment import PlainEnvironment, plain_environment
from shardfleet.adapters.sdk_errors import SdkCall
from shardfleet.errors import ConfigurationError

if TYPE_CHECKING:
    from botocore.session import Session


class Access(Struct, frozen=True, kw_only=True):
    """
    Whom to ask, and as whom.

    Attributes:
        region: empty: the environment's.
        endpoint: URL of all services; empty: AWS's own (or the environment's).
        access_key_id: whose keys are used; empty: the default credential chain's.
        secret_access_key: belongs to it.
        session_token: belongs to both, where they are temporary.
        profile: of the shared configuration files; empty: the environment's.
        role_arn: role to assume with these; empty: none.
        role_session_name: of the assumed role's session.
        role_external_id: that the role's trust asks for; empty: none.
        connections: kept open by each client.

    """

    region: str = ""
    endpoint: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""
    session_token: str = ""
    profile: str = ""
    role_arn: str = ""
    role_session_name: str = "shardfleet"
    role_external_id: str = ""
    connections: int = 8


class AccountClients(AwsClients):
    """
    Clients of one account, made when asked for; safe to share between threads.

    Args:
        access: whom to ask.
        stream: name or ARN of a stream; its region counts if ``access`` names none.

    Attributes:
        region: the region of all clients.

    Raises:
        ConfigurationError: no region is known.

    """

    # A PutRecords request or a GetRecords answer has up to 10 MiB (Kinesis quota).
    records_timeout_s = 30.0

    def __init__(self, access: Access, *, stream: str = "") -> None:
        self._access = access
        self._named_region = access.region or region_of(stream)
        plain = _plain(access, self._named_region)
        self.region = plain.region if plain else self._sdk.get_config_variable("region")
        if self.region is None:
            raise ConfigurationError(
                "no AWS region is known: name one in option region, or set AWS_REGION"
            )
        count = access.connections
        limits = ConnectionLimits(writes=count, reads=count, streams=count)
        super().__init__(limits, endpoint=access.endpoint or None, plain=plain)

    @cached_property
    def _sdk(self) -> Session:
        from botocore.session import Session  # noqa: PLC0415 - see http/connections.py

        access = self._access
        session = Session(profile=access.profile or None)
        if access.profile and access.profile not in session.available_profiles:
            raise ConfigurationError(
                f"option profile = {access.profile!r}: the shared configuration files have no such "
                f"profile, but {', '.join(session.available_profiles) or 'none at all'}"
            )
        if self._named_region:
            session.set_config_variable("region", self._named_region)
        if access.access_key_id:
            session.set_credentials(
                access.access_key_id, access.secret_access_key, access.session_token or None
            )
        return _assumed(access, session) if access.role_arn else session

    @cached_property
    def cloudwatch(self) -> Any:
        """PutMetricData."""
        return self._client("cloudwatch")

    @cached_property
    def glue(self) -> Any:
        """GetSchemaVersion."""
        return self._client("glue")

    def stream_arn(self, stream: str) -> str:
        """
        Return a stream's ARN.

        Raises:
            ConfigurationError: there is no such stream, or no right to ask for it.
            ShardfleetError: no answer.

        """
        if stream.startswith("arn:"):
            return stream

        def missing(_: str) -> ConfigurationError:
            return ConfigurationError(
                f"option stream = {stream!r}: there is no such stream in {self.region}"
            )

        call = SdkCall(
            f"DescribeStreamSummary of {stream}", codes={"ResourceNotFoundException": missing}
        )
        found = call.run(self.wired_control.describe_stream_summary, StreamName=stream)
        return found["StreamDescriptionSummary"]["StreamARN"]


def _plain(access: Access, region: str | None) -> PlainEnvironment | None:
    """Return what the environment and the options say by themselves; the rest is botocore's."""
    if access.role_arn or access.profile:
        return None
    env = dict(os.environ)
    if access.access_key_id:
        env["AWS_ACCESS_KEY_ID"] = access.access_key_id
        env["AWS_SECRET_ACCESS_KEY"] = access.secret_access_key
        env["AWS_SESSION_TOKEN"] = access.session_token
    if region:
        env["AWS_DEFAULT_REGION"] = region
    if access.endpoint:
        env = {name: it for name, it in env.items() if not name.startswith("AWS_ENDPOINT_URL")}
        env["AWS_ENDPOINT_URL"] = access.endpoint
    return plain_environment(env)


def _assumed(access: Access, source: Session) -> Session:
    """Return a session as the role, whose credentials renew themselves."""
    from botocore.credentials import (  # noqa: PLC0415 - see http/connections.py
        AssumeRoleCredentialFetcher,
        DeferredRefreshableCredentials,
    )
    from botocore.session import Session  # noqa: PLC0415 - see above

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
    assumed: Any = Session()
    assumed.set_config_variable("region", source.get_config_variable("region"))
    assumed._credentials = DeferredRefreshableCredentials(  # noqa: SLF001 - the SDK's own way in.
        method="assume-role", refresh_using=fetcher.fetch_credentials
    )
    session: Session = assumed
    return session
