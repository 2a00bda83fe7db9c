"""The options that source and sink share: which stream, where, and as whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardfleet.errors import ConfigurationError
from shardfleet_spark.options.columns import COLUMNS
from shardfleet_spark.options.options import Kind, names, option, text

_STREAM = r"arn:aws[\w-]*:kinesis:[\w-]+:\d{12}:stream/[\w.-]{1,128}|[\w.-]{1,128}"
_REGION = r"|[a-z]{2,}(-[a-z]+)+-\d{1,2}"
_ROLE = r"|arn:aws[\w-]*:iam::\d{12}:role/.+"
_URL = r"|https?://[^\s/:@]+(:\d{1,5})?(/\S*)?"
# Botocore's own shapes: accessKeyIdType of IAM (16 to 128 word characters), and no space in keys.
_KEY_ID = r"|\w{16,128}"
_NO_SPACE = r"\S*"
_PROFILE = r"|[^\s\[\]]+"
_EXTERNAL_ID = r"|[\w+=,.@:/-]{2,1224}"  # API reference of AssumeRole


def optional_url() -> Kind:
    """Take the URL of a service; empty means none."""
    return text(pattern=_URL, allowed="a URL such as https://host:port, or nothing")


@dataclass(frozen=True, kw_only=True)
class AccessOptions:
    """A stream, and how it is reached: the first options of source and sink."""

    stream: str = option(
        text(pattern=_STREAM, allowed="the name of a stream or its ARN"),
        doc="The stream: its name, or its ARN (also of another account).",
    )
    region: str = option(
        text(pattern=_REGION, allowed="a region such as eu-central-1, or nothing"),
        default="",
        doc="AWS region; none: that of the stream's ARN, else the environment's.",
    )
    endpoint: str = option(
        optional_url(),
        default="",
        doc="URL of Kinesis, and of STS if there is a role (a VPC endpoint, an emulator); none: "
        "AWS's own.",
    )
    access_key_id: str = option(
        text(pattern=_KEY_ID, allowed="16 to 128 letters and digits, or nothing"),
        default="",
        doc="Whose keys are used, on the driver and in tasks; none: the default credential chain. "
        "They travel with the plan, so better a role or a profile.",
        is_secret=True,
    )
    secret_access_key: str = option(
        text(pattern=_NO_SPACE, allowed="the secret of accessKeyId, without spaces"),
        default="",
        doc="The secret of `accessKeyId`.",
        is_secret=True,
    )
    session_token: str = option(
        text(pattern=_NO_SPACE, allowed="the token of temporary keys, without spaces"),
        default="",
        doc="The token of both, where they are temporary; a query ends when they do.",
        is_secret=True,
    )
    profile: str = option(
        text(pattern=_PROFILE, allowed="a profile's name, or nothing"),
        default="",
        doc="Profile of the shared configuration files, which driver and tasks must have.",
    )
    role_arn: str = option(
        text(pattern=_ROLE, allowed="the ARN of a role, or nothing"),
        default="",
        doc="Role to assume, with these; none: no role.",
    )
    role_session_name: str = option(
        text(pattern=r"[\w+=,.@-]{2,64}", allowed="2 to 64 letters, digits or any of +=,.@-_"),
        default="shardfleet",
        doc="Name of the assumed role's session.",
    )
    role_external_id: str = option(
        text(pattern=_EXTERNAL_ID, allowed="2 to 1224 letters, digits or any of +=,.@:/-_"),
        default="",
        doc="External id that the role's trust policy asks for.",
    )
    columns: tuple[str, ...] = option(
        names(among=COLUMNS),
        default="",
        doc="The columns that are read, in this order; none named: all. The sink takes this of a "
        "view that SQL both reads and writes.",
    )

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.role_external_id and not self.role_arn:
            raise ConfigurationError(
                "option roleExternalId is of no use without roleArn: give both or neither"
            )
        if bool(self.access_key_id) != bool(self.secret_access_key):
            raise ConfigurationError(
                "options accessKeyId and secretAccessKey belong together: give both or neither"
            )
        if self.session_token and not self.access_key_id:
            raise ConfigurationError(
                "option sessionToken is of no use without accessKeyId and secretAccessKey"
            )
        if self.profile and self.access_key_id:
            raise ConfigurationError(
                "options profile and accessKeyId both say whose keys are used: give one of them"
            )
        of_arn = self.stream.split(":")[3] if self.stream.startswith("arn:") else ""
        if self.region and of_arn and self.region != of_arn:
            raise ConfigurationError(
                f"option region = {self.region!r}, but the stream's ARN says {of_arn!r}: leave the "
                "option out, or correct the ARN"
            )

    @property
    def access(self) -> dict[str, Any]:
        """Return whom to ask: keywords of ``shardfleet.adapters.clients.account_access.Access``."""
        return {
            "region": self.region,
            "endpoint": self.endpoint,
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
            "session_token": self.session_token,
            "profile": self.profile,
            "role_arn": self.role_arn,
            "role_session_name": self.role_session_name,
            "role_external_id": self.role_external_id,
        }
