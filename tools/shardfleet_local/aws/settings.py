"""What the launcher tells the server process at its start, as one line of JSON."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class AwsBehaviour:
    """
    How the services behave beyond what each call asks of them, and when.

    Attributes:
        kinesis_quotas: whether shards enforce their limits.
        unkind: a seed: what Kinesis leaves open happens, drawn from it (`kinesis/faults.py`);
            None: it does not.
        index_built_s: how long a new index of a DynamoDB table that is there is built; on AWS
            minutes, or hours for large tables.
        page_items: most items of a page of any paged call; None: as many as AWS allows.
        silent_after_s: after such a rest, what a Lambda process sends on its open connections
            reaches nobody, and nobody says so (brianc/node-postgres issues 2243 and 2718). On AWS
            it takes seconds or minutes, and not always; here always, so that a test can rely on
            it. Processes that the function has started keep their connections.
        init_limit_s: Lambda's limit for the init phase; an init that fails or takes longer runs
            again within the first invocation (Lambda guide, execution environment lifecycle).
        account_concurrency: how many invocations may run at once in the account: 1,000, and 10 in
            a new one (awslabs/fhir-works-on-aws-deployment issue 691).
        event_deliveries: how often each asynchronous invocation is delivered: 2 twice, 0 dropped
            without a trace (Lambda guide, asynchronous invocation).
        schedule_firings: how often each schedule fires at its time (Scheduler delivers at least
            once).
        executions_behind_s: DescribeExecution and ListExecutions answer as of so long ago: what has
            begun since is absent, what has ended still runs (DataBiosphere/azul issue 880).
        certificate: file of a certificate for 127.0.0.1 and its key: everything is then at a
            second endpoint as well, with TLS and, by ALPN, HTTP/2; empty: it is not.

    """

    kinesis_quotas: bool = True
    unkind: int | None = None
    index_built_s: float = 0.0  # ours
    page_items: int | None = None
    silent_after_s: float = 10.0  # fact L04
    init_limit_s: float = 10.0  # fact L01
    account_concurrency: int = 1_000  # fact L08
    event_deliveries: int = 1  # fact L10, L12
    schedule_firings: int = 1  # ours
    executions_behind_s: float = 0.0  # fact S06
    certificate: str = ""

    def __post_init__(self) -> None:
        """Check; raises ValueError for a page of nothing."""
        if self.page_items is not None and self.page_items < 1:
            raise ValueError(f"page_items: {self.page_items} found, 1 or more allowed")  # ours


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
    behaviour: AwsBehaviour
    lambda_environment: Mapping[str, str] = field(default_factory=dict)
    alarm_tick_s: float = 1.0
    schedule_tick_s: float = 1.0
    tls_port: int = 0

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
        behaviour = AwsBehaviour(**values.pop("behaviour"))
        return cls(**{**values, "folder": Path(values["folder"]), "behaviour": behaviour})
