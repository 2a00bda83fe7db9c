"""Alarms of a template: how far they look back, and what they see when there is no data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from shardfleet_ops.template.limits import (
    NAMESPACE,
    TOLD_EACH_TURN,
    look_back_seconds_most,
)
from shardfleet_ops.template.reading import (
    Template,
    TemplateFault,
    TemplateResource,
    least_length,
    listed,
    literal,
    number,
    spelled,
)

ALARM, COMPOSITE = "AWS::CloudWatch::Alarm", "AWS::CloudWatch::CompositeAlarm"
RULE_MOST, CHILDREN_MOST = 10_240, 100  # PutCompositeAlarm.AlarmRule.
DIMENSIONS_MOST = 30  # Dimension: per metric.

_FILL = re.compile(r"\bFILL\(\s*\w+\s*,[^()]*\)")
_ABSENCE = re.compile(r"\bFILL\(\s*(\w+)\s*,\s*0+(?:\.0*)?\s*\)\s*(?:==\s*0|<=?\s*\d)")


def _metrics(alarm: TemplateResource) -> Iterator[Mapping[str, Any]]:
    """Yield each metric that an alarm looks at, with its period."""
    if "MetricName" in alarm.properties:
        yield alarm.properties
    for query in listed(alarm.properties.get("Metrics")):
        stat = query.get("MetricStat") or {}
        if stat:
            yield {**stat.get("Metric", {}), "Period": stat.get("Period"), "Id": query.get("Id")}


def _expressions(alarm: TemplateResource) -> Iterator[str]:
    for query in listed(alarm.properties.get("Metrics")):
        if "Expression" in query:
            yield spelled(query["Expression"])


def long_look_backs(template: Template) -> Iterator[TemplateFault]:
    """C07: an alarm looks back a day, a week if its periods are an hour or more."""
    for alarm in template.resources(ALARM):
        periods = number(alarm.properties.get("EvaluationPeriods"))
        known = [int(found) for each in _metrics(alarm) if (found := number(each.get("Period")))]
        if not known or periods is None:
            continue
        period, most = max(known), look_back_seconds_most(max(known))
        if period * periods > most:
            yield TemplateFault(
                certain=True,
                fact="C07",
                where=alarm.path,
                found=f"{periods:.0f} periods of {period} s look back {period * periods:.0f} s",
                allowed=f"{most} s for periods of {period} s",
                remedy="look at fewer periods, or at periods of an hour",
            )


def wrong_dimensions(template: Template) -> Iterator[TemplateFault]:
    """C15: dimensions are ASCII, not empty, and at most 30."""
    for alarm in template.resources(ALARM):
        for metric in _metrics(alarm):
            dimensions = listed(metric.get("Dimensions"))
            wrong = [
                text
                for each in dimensions
                for text in (literal(each.get("Name")), literal(each.get("Value")))
                if text is not None and (not text.strip() or not text.isascii())
            ]
            if wrong or len(dimensions) > DIMENSIONS_MOST:
                named = ", ".join(repr(text) for text in wrong) or f"{len(dimensions)} of them"
                yield TemplateFault(
                    certain=True,
                    fact="C15",
                    where=alarm.path,
                    found=f"the dimensions of {metric.get('MetricName')} have {named}",
                    allowed=f"names and values in ASCII, not empty, {DIMENSIONS_MOST} at most",
                    remedy="name the fleet, or what is measured, in ASCII",
                )


def long_rules(template: Template) -> Iterator[TemplateFault]:
    """C09: the rule of a composite alarm has a length and a number of alarms."""
    for alarm in template.resources(COMPOSITE):
        rule = alarm.properties.get("AlarmRule")
        length = least_length(rule)
        children = len(re.findall(r"\b(?:ALARM|OK|INSUFFICIENT_DATA)\s*\(", spelled(rule)))
        if length > RULE_MOST or children > CHILDREN_MOST:
            yield TemplateFault(
                certain=True,
                fact="C09",
                where=alarm.path,
                found=f"the rule has {length:,} characters or more and names {children} alarms",
                allowed=f"{RULE_MOST:,} characters, {CHILDREN_MOST} alarms",
                remedy="make a composite alarm of each fleet, and one of those",
            )


def deaf_table_alarms(template: Template) -> Iterator[TemplateFault]:
    """C01: alarms over DynamoDB's metrics keep their state while data is missing."""
    for alarm in template.resources(ALARM):
        treat = alarm.properties.get("TreatMissingData")
        tables = [each for each in _metrics(alarm) if each.get("Namespace") == "AWS/DynamoDB"]
        if tables and treat in ("breaching", "notBreaching"):
            yield TemplateFault(
                certain=True,
                fact="C01",
                where=alarm.path,
                found=f"missing data of {tables[0].get('MetricName')} is to count as {treat}",
                allowed="CloudWatch ignores missing data of AWS/DynamoDB: the alarm stays as it is",
                remedy="say ignore, and fill the metric by an expression such as FILL(m1, 0)",
            )


def lame_sums(template: Template) -> Iterator[TemplateFault]:
    """C02: nobody should rest on what a sum is when one side has no data."""
    for alarm in template.resources(ALARM):
        names = {str(each["Id"]) for each in _metrics(alarm) if each.get("Id")}
        for expression in _expressions(alarm):
            bare = _bare_summands(expression, names)
            if bare:
                yield TemplateFault(
                    certain=False,
                    fact="C02",
                    where=alarm.path,
                    found=f"{expression!r} adds {' and '.join(bare)} as they are",
                    allowed="a sum of metrics of which one has no data is nothing, or counts that "
                    "one as 0: CloudWatch has been seen to do both",
                    remedy="write FILL(…, 0) around each, or IF(DATAPOINT_COUNT(…) …) around all",
                )


def _bare_summands(expression: str, names: set[str]) -> list[str]:
    if "DATAPOINT_COUNT" in expression:
        return []
    text = _FILL.sub("0", expression)
    around = re.findall(r"\b([a-z]\w*)\b(?=\s*[-+])|(?<=[-+])\s*\b([a-z]\w*)\b", text)
    found = {name for pair in around for name in pair if name in names}
    return sorted(found)


def blind_fills(template: Template) -> Iterator[TemplateFault]:
    """A13: FILL fills gaps; of a metric without a single point nothing is promised."""
    for alarm in template.resources(ALARM):
        told = {each.get("Id") for each in _metrics(alarm) if _is_told_each_turn(each)}
        for expression in _expressions(alarm):
            for found in _ABSENCE.finditer(expression):
                if found[1] in told:
                    continue
                yield TemplateFault(
                    certain=False,
                    fact="A13",
                    where=alarm.path,
                    found=f"{found[0]!r} looks for {found[1]} to be absent",
                    allowed="FILL is said to fill gaps: where the metric has no point at all, the "
                    "expression may be nothing, and the alarm silent",
                    remedy="let something put a 0 each minute, and compare the metric as it is",
                )


def _is_told_each_turn(metric: Mapping[str, Any]) -> bool:
    return metric.get("Namespace") == NAMESPACE and metric.get("MetricName") in TOLD_EACH_TURN


def old_spark_metrics(template: Template) -> Iterator[TemplateFault]:
    """A4: from release 7.10 EMR Serverless puts its metrics with the application's name only."""
    for alarm in template.resources(ALARM):
        for metric in _metrics(alarm):
            names = {each.get("Name") for each in listed(metric.get("Dimensions"))}
            if metric.get("Namespace") == "AWS/EMRServerless" and "ApplicationName" not in names:
                yield TemplateFault(
                    certain=True,
                    fact="A4",
                    where=alarm.path,
                    found=f"{metric.get('MetricName')} by {', '.join(sorted(map(str, names)))}",
                    allowed="newer releases of EMR put it with ApplicationId and ApplicationName",
                    remedy="add the dimension ApplicationName",
                )
