"""Options of the monitoring; every default is written where it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from aws_cdk import aws_cloudwatch as cw
from aws_cdk import aws_sns as sns

from shardfleet.errors import ConfigurationError

PERIOD_SECONDS = 60  # CloudWatch: 60 s, or a multiple of it.
RETENTION_HOURS = (24, 8_760)  # Kinesis: one day to one year.


class AlarmLevel(StrEnum):
    """What an alarm asks for: somebody at once, somebody today, or nobody."""

    PAGE = "page"
    NOTICE = "notice"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmSetting:
    """
    What to change of one alarm; None leaves it as the run-book's table says.

    Attributes:
        threshold: in the alarm's own unit (see `docs/operating.md`).
        datapoints: how many periods must be bad ...
        periods: ... among this many.
        level: who hears of it.

    """

    threshold: float | None = None
    datapoints: int | None = None
    periods: int | None = None
    level: AlarmLevel | None = None

    def __post_init__(self) -> None:
        """Refuse what CloudWatch would refuse later."""
        for name in ("datapoints", "periods"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{name}: {value} found, 1 or more allowed")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoringOptions:
    """
    How a fleet is watched.

    Attributes:
        page: told by the composite alarm alone (default: nobody).
        notice: told by each alarm of level notice (default: nobody).
        alarms: by the alarm's name what to change; None leaves the alarm out.
        by_cause: an alarm for each cause, beside the six that every cause rings; it wants the
            fleet's ``metrics`` to be ``all`` or ``shards``.
        retention_hours: the stream's retention; half of it is the limit of `data_loss`.
        runbook: what every alarm's description points at, `#` and the alarm's name appended: a
            URL, or where the page is in the repository.
        quiet_while: an alarm of yours; while it is in ALARM, as during a deployment, nobody is
            paged (default: none).
        dashboard: whether the fleet has a dashboard of its own; its widgets can be put into one of
            yours, too.

    """

    page: Sequence[sns.ITopic] = ()
    notice: Sequence[sns.ITopic] = ()
    alarms: Mapping[str, AlarmSetting | None] = field(default_factory=dict)
    by_cause: bool = False
    retention_hours: int = 24
    runbook: str = "docs/operating.md"
    quiet_while: cw.IAlarm | None = None
    dashboard: bool = True

    def __post_init__(self) -> None:
        """Refuse what Kinesis cannot have."""
        low, high = RETENTION_HOURS
        if not low <= self.retention_hours <= high:
            raise ConfigurationError(
                f"retention_hours: {self.retention_hours} found, {low} to {high} allowed"
            )
