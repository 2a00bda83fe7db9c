"""Log queries that add up over JSON lines, as the dashboard's table of lagging shards does."""

import json
import time
import uuid

import pytest

from shardfleet_local.aws.log_queries import statistics

QUERY = """filter message = "LeaseBehind"
| stats max(lag_ms) as greatest_lag_ms by lease_key
| sort greatest_lag_ms desc
| limit 2"""


def a_line(key, lag_ms, message="LeaseBehind"):
    return json.dumps({"message": message, "lease_key": key, "lag_ms": lag_ms})


LINES = [
    a_line("a", 5),
    a_line("a", 70_000),
    a_line("b", 90_000),
    a_line("c", 60_000),
    a_line("d", 99_000, message="Other"),
    "START RequestId: 1",
    "[1]",
]
EXPECTED = [
    {"lease_key": "b", "greatest_lag_ms": "90000"},
    {"lease_key": "a", "greatest_lag_ms": "70000"},
]


def test_the_greatest_per_key_sorted_and_cut():
    assert statistics(QUERY, LINES) == EXPECTED


@pytest.mark.parametrize("query", ["fields @message", "stats median(a) as b by c", "limit 3"])
def test_other_queries_are_left_to_the_emulator(query):
    assert statistics(query, LINES) is None


@pytest.mark.processes
def test_the_embedded_aws_answers_such_a_query(embedded_aws):
    logs, group = embedded_aws.client("logs"), f"group-{uuid.uuid4().hex}"
    logs.create_log_group(logGroupName=group)
    logs.create_log_stream(logGroupName=group, logStreamName="s")
    now = int(time.time() * 1000)
    logs.put_log_events(
        logGroupName=group,
        logStreamName="s",
        logEvents=[{"timestamp": now, "message": line} for line in LINES],
    )
    started = logs.start_query(
        logGroupName=group,
        startTime=now // 1000 - 60,
        endTime=now // 1000 + 60,
        queryString=QUERY,
    )
    answer = logs.get_query_results(queryId=started["queryId"])
    rows = [{cell["field"]: cell["value"] for cell in row} for row in answer["results"]]
    assert rows == EXPECTED
