"""`FleetMonitoring`: dashboard and alarms of one fleet."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cw
from aws_cdk import aws_cloudwatch_actions as actions
from constructs import Construct

from shardfleet.errors import ConfigurationError
from shardfleet_cdk.monitoring.alarm_rules import AlarmRule, alarm_rules
from shardfleet_cdk.monitoring.dashboard import causes_told, fleet_widgets
from shardfleet_cdk.monitoring.metrics import FleetMetrics, WatchedFleet
from shardfleet_cdk.monitoring.settings import (
    AlarmLevel,
    AlarmSetting,
    MonitoringOptions,
)
from shardfleet_ops.template.limits import look_back_seconds_most

_FEW = "by_cause: true found, allowed with metrics all or shards: few have not what it watches"


class FleetMonitoring(Construct):
    """
    One dashboard, alarms of the run-book, and one composite alarm that pages.

    Names are CloudFormation's (the composite alarm's is the CDK's, of stack and path), so that an
    account holds any number of watched fleets.

    Args:
        scope: the parent construct.
        construct_id: within it.
        fleet: what is watched.
        options: who is told, and what differs from the run-book's table.

    Attributes:
        alarms: by their names in the run-book.
        alarm_metrics: how many metrics they watch: each is billed, an expression is not.
        page: the composite alarm.
        dashboard: the dashboard, or None.

    Raises:
        ConfigurationError: an alarm is unknown or looks back too far; the message begins with
            this construct's path.

    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        fleet: WatchedFleet,
        options: MonitoringOptions,
    ) -> None:
        super().__init__(scope, construct_id)
        self._options = options
        self._metrics = FleetMetrics(fleet)
        rules = alarm_rules(
            self._metrics,
            retention_hours=self._options.retention_hours,
            reserved_concurrency=fleet.worker_options.reserved_concurrency,
            by_cause=options.by_cause,
        )
        try:
            if options.by_cause and not fleet.has_all_metrics:
                raise ConfigurationError(_FEW)
            self.rules = _as_set(rules, self._options.alarms)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.node.path}: {error}") from error
        self.alarms: dict[str, cw.Alarm] = {rule.name: self._alarm(rule) for rule in self.rules}
        self.alarm_metrics = sum(_metrics_of(rule.metric) for rule in self.rules)
        self.page = self._composite()
        self.dashboard = self._own_dashboard() if options.dashboard else None

    def widgets(self) -> list[list[cw.IWidget]]:
        """
        Return the fleet's widgets, row by row, for a dashboard of yours.

        As in ``cloudwatch.Dashboard(stack, "All", widgets=[*mine, *fleet.monitoring.widgets()])``.
        """
        return fleet_widgets(self._metrics, page=self.page, alarms=self.alarms)

    def _own_dashboard(self) -> cw.Dashboard:
        return cw.Dashboard(
            self, "Dashboard", default_interval=Duration.hours(3), widgets=self.widgets()
        )

    def _alarm(self, rule: AlarmRule) -> cw.Alarm:
        comparison = cw.ComparisonOperator
        missing = cw.TreatMissingData
        alarm = cw.Alarm(
            self,
            rule.name.replace("_", " ").title().replace(" ", ""),
            alarm_description=f"{rule.meaning} {self._options.runbook}#{rule.name}",
            metric=rule.metric,
            threshold=rule.threshold,
            comparison_operator=comparison.LESS_THAN_THRESHOLD
            if rule.below
            else comparison.GREATER_THAN_THRESHOLD,
            datapoints_to_alarm=rule.datapoints,
            evaluation_periods=rule.periods,
            treat_missing_data=missing.BREACHING if rule.missing_is_bad else missing.NOT_BREACHING,
        )
        if rule.level is AlarmLevel.NOTICE:
            for topic in self._options.notice:
                alarm.add_alarm_action(actions.SnsAction(topic))
                alarm.add_ok_action(actions.SnsAction(topic))
        return alarm

    def _composite(self) -> cw.CompositeAlarm:
        """Make the alarm that pages: any alarm of that level, unless somebody is deploying."""
        pages = [self.alarms[rule.name] for rule in self.rules if rule.level is AlarmLevel.PAGE]
        if not pages:
            raise ConfigurationError(f"{self.node.path}: alarms: no alarm of level page is left")
        rule = cw.AlarmRule.any_of(
            *(cw.AlarmRule.from_alarm(alarm, cw.AlarmState.ALARM) for alarm in pages)
        )
        quiet = self._options.quiet_while
        if quiet is not None:
            deploying = cw.AlarmRule.from_alarm(quiet, cw.AlarmState.ALARM)
            rule = cw.AlarmRule.all_of(rule, cw.AlarmRule.not_(deploying))
        composite = cw.CompositeAlarm(
            self,
            "Page",
            alarm_rule=rule,
            alarm_description="Somebody must look at this fleet now: see which of its alarms is "
            f"red. {causes_told(self._metrics.fleet)} {self._options.runbook}#page",
        )
        for topic in self._options.page:
            composite.add_alarm_action(actions.SnsAction(topic))
            composite.add_ok_action(actions.SnsAction(topic))
        return composite


def _as_set(rules: list[AlarmRule], settings: Mapping[str, AlarmSetting | None]) -> list[AlarmRule]:
    """Return the rules as the settings change them. Raises ConfigurationError."""
    known = [rule.name for rule in rules]
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise ConfigurationError(f"alarms: {name}: no such alarm of this fleet; {hint}")
    changed = [
        rule.changed(settings.get(rule.name) or AlarmSetting())
        for rule in rules
        if settings.get(rule.name, AlarmSetting()) is not None
    ]
    for rule in changed:
        period_s = _period_seconds(rule.metric)
        seconds, most = rule.periods * period_s, look_back_seconds_most(period_s)
        if seconds > most:
            raise ConfigurationError(
                f"alarms: {rule.name}: periods: {rule.periods} look back {seconds} s, CloudWatch "
                f"allows {most}"
            )
    return changed


def _metrics_of(metric: cw.IMetric) -> int:
    return len(metric.using_metrics or ()) if isinstance(metric, cw.MathExpression) else 1


def _period_seconds(metric: cw.IMetric) -> int:
    assert isinstance(metric, cw.Metric | cw.MathExpression)
    return int(metric.period.to_seconds())
