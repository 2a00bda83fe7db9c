"""What the launcher tells the server process at its start, as one line of JSON."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """
    The settings of one embedded AWS.

    `folder` is the private temporary folder; the access key is the account's root, and what opens
    the server's door; `alarm_tick_s` and `schedule_tick_s` are seconds
    between two looks at the alarms and at the schedules; `lambda_environment` is added to every
    Lambda process without appearing in any function's configuration.
    """

    folder: Path
    port: int
    account_id: str
    region: str
    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    enforce_iam: bool
    kinesis_quotas: bool
    lambda_environment: Mapping[str, str] = field(default_factory=dict)
    alarm_tick_s: float = 1.0
    schedule_tick_s: float = 1.0

    @property
    def endpoint_url(self) -> str:
        """The one endpoint of all services."""
        return f"http://127.0.0.1:{self.port}"

    def to_json(self) -> str:
        """Write the document that `from_json` reads."""
        return json.dumps({**dataclasses.asdict(self), "folder": str(self.folder)})

    @classmethod
    def from_json(cls, text: str) -> "ServerSettings":
        """Read what `to_json` wrote; TypeError names an unknown or missing field."""
        values = json.loads(text)
        return cls(**{**values, "folder": Path(values["folder"])})
