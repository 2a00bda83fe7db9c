"""Reading metrics as CloudWatch answers, and metrics that arrive by themselves."""

import json
import time
import uuid

import pytest

from shardfleet_local.aws.cloudwatch import embedded_metrics, from_query, to_xml


def test_the_query_protocol_is_read_into_maps_and_lists():
    flat = {
        "Action": ["GetMetricData"],
        "MetricDataQueries.member.2.Id": ["b"],
        "MetricDataQueries.member.1.Id": ["a"],
        "MetricDataQueries.member.1.MetricStat.Period": ["60"],
    }
    assert from_query(flat) == {
        "Action": "GetMetricData",
        "MetricDataQueries": [{"Id": "a", "MetricStat": {"Period": "60"}}, {"Id": "b"}],
    }


def test_xml_is_escaped():
    assert (
        to_xml({"A": [{"B": "<&"}, 1]})
        == "<A><member><B>&lt;&amp;</B></member><member>1</member></A>"
    )


def emf(**changes):
    document = {
        "_aws": {
            "Timestamp": 1_700_000_000_000,
            "CloudWatchMetrics": [
                {
                    "Namespace": "Fleet",
                    "Dimensions": [["Fleet"], ["Fleet", "Shard"]],
                    "Metrics": [{"Name": "Lag", "Unit": "Milliseconds"}, {"Name": "Absent"}],
                }
            ],
        },
        "Fleet": "f",
        "Shard": "s",
        "Lag": [3, 4],
    }
    return json.dumps({**document, **changes})


def test_a_line_in_the_embedded_metric_format_has_one_metric_per_dimension_set():
    found = embedded_metrics(emf(), now=0.0)
    assert [metric["dimensions"] for metric in found] == [
        {"Fleet": "f"},
        {"Fleet": "f", "Shard": "s"},
    ]
    assert {metric["name"] for metric in found} == {"Lag"}
    assert found[0]["values"] == [3.0, 4.0]
    assert found[0]["timestamp"] == 1_700_000_000.0
    assert found[0]["unit"] == "Milliseconds"


@pytest.mark.parametrize(
    "line", ["plain", "{}", emf(_aws={"CloudWatchMetrics": "wrong"}), "{" + emf()]
)
def test_other_lines_have_no_metrics(line):
    assert embedded_metrics(line, now=0.0) == []


def directive(metrics):
    names = [{"Name": f"m{n}"} for n in range(metrics)]
    return {"CloudWatchMetrics": [{"Namespace": "F", "Dimensions": [["Fleet"]], "Metrics": names}]}


@pytest.mark.parametrize(
    ("line", "is_taken"),
    [
        (emf(Lag=[1] * 100), True),
        (emf(Lag=[1] * 101), False),
        (emf(_aws=directive(100), m0=1), True),
        (emf(_aws=directive(101), m0=1), False),
        (emf(Lag=2**360), True),
        (emf(Lag=[1, 2**361]), False),
        (emf(Lag=float("inf")), False),
        (emf(Lag=float("nan")), False),
        (emf(Lag=None), False),
    ],
)
def test_a_line_beyond_the_limits_of_the_format_is_dropped_whole(line, is_taken):
    """Facts C18 and C19: in silence, so that whoever writes such lines must be found out here."""
    assert bool(embedded_metrics(line, now=0.0)) is is_taken


@pytest.fixture
def cloudwatch(embedded_aws):
    return embedded_aws.client("cloudwatch")


@pytest.fixture
def namespace():
    return f"Test/{uuid.uuid4().hex[:8]}"


@pytest.mark.processes
class TestInTheEmbeddedAws:
    def put(self, cloudwatch, namespace, at, values):
        cloudwatch.put_metric_data(
            Namespace=namespace,
            MetricData=[
                {
                    "MetricName": "Count",
                    "Value": value,
                    "Timestamp": at,
                    "Dimensions": [{"Name": "Shard", "Value": shard}] if shard else [],
                }
                for shard, value in values.items()
            ],
        )

    def test_a_read_without_dimensions_is_not_the_sum_of_all(self, cloudwatch, namespace):
        at = int(time.time()) // 60 * 60 - 120
        self.put(cloudwatch, namespace, at, {"": 7, "a": 40})
        answer = cloudwatch.get_metric_statistics(
            Namespace=namespace,
            MetricName="Count",
            StartTime=at,
            EndTime=at + 60,
            Period=60,
            Statistics=["Sum", "Maximum"],
            ExtendedStatistics=["p50"],
        )
        (point,) = answer["Datapoints"]
        assert (point["Sum"], point["Maximum"]) == (7, 7)
        assert point["ExtendedStatistics"] == {"p50": 7}
        assert point["Timestamp"].timestamp() == at

    def test_metric_math_is_answered_newest_first(self, cloudwatch, namespace):
        at = int(time.time()) // 60 * 60 - 240
        self.put(cloudwatch, namespace, at, {"a": 1, "b": 10})
        self.put(cloudwatch, namespace, at + 60, {"a": 2})
        stat = {"Period": 60, "Stat": "Sum"}
        metrics = [
            {
                "Id": f"m{shard}",
                "ReturnData": False,
                "MetricStat": {
                    **stat,
                    "Metric": {
                        "Namespace": namespace,
                        "MetricName": "Count",
                        "Dimensions": [{"Name": "Shard", "Value": shard}],
                    },
                },
            }
            for shard in ("a", "b")
        ]
        answer = cloudwatch.get_metric_data(
            StartTime=at,
            EndTime=at + 120,
            MetricDataQueries=[
                *metrics,
                {"Id": "total", "Expression": "SUM(METRICS())", "Label": "all"},
                {"Id": "share", "Expression": "100 * ma / total"},
                {"Id": "quiet", "Expression": "FILL(mb, 0)"},
            ],
        )
        found = {each["Id"]: each for each in answer["MetricDataResults"]}
        assert list(found) == ["total", "share", "quiet"]
        assert found["total"]["Label"] == "all"
        assert found["total"]["Values"] == [2, 11]
        assert [moment.timestamp() for moment in found["total"]["Timestamps"]] == [at + 60, at]
        assert found["share"]["Values"] == [100, pytest.approx(100 / 11)]
        assert found["quiet"]["Values"] == [0, 10]

    def test_a_wrong_expression_is_refused_with_the_reason(self, cloudwatch):
        with pytest.raises(cloudwatch.exceptions.ClientError, match="no id of a query"):
            cloudwatch.get_metric_data(
                StartTime=0,
                EndTime=60,
                MetricDataQueries=[{"Id": "e", "Expression": "missing + 1", "Period": 60}],
            )

    def test_a_function_s_log_line_becomes_a_metric(
        self, make_function, cloudwatch, namespace, eventually
    ):
        function = make_function("def handler(event, context):\n    print(event)\n")
        line = json.loads(emf())
        line["_aws"]["CloudWatchMetrics"][0]["Namespace"] = namespace
        line["_aws"]["Timestamp"] = int(time.time() * 1000)
        function.invoke(json.dumps(line))

        def found():
            answer = cloudwatch.get_metric_statistics(
                Namespace=namespace,
                MetricName="Lag",
                Dimensions=[{"Name": "Fleet", "Value": "f"}],
                StartTime=time.time() - 600,
                EndTime=time.time() + 60,
                Period=3600,
                Statistics=["Sum", "SampleCount"],
            )
            return answer["Datapoints"]

        (point,) = eventually(found)
        assert (point["Sum"], point["SampleCount"]) == (7, 2)

    def test_an_invocation_is_counted_once_whichever_way_it_came(
        self, make_function, cloudwatch, eventually
    ):
        function = make_function("def handler(event, context):\n    return 1 / event\n")
        function.invoke(1)
        function.invoke(0)

        def sums(name):
            answer = cloudwatch.get_metric_statistics(
                Namespace="AWS/Lambda",
                MetricName=name,
                Dimensions=[{"Name": "FunctionName", "Value": function.name}],
                StartTime=time.time() - 600,
                EndTime=time.time() + 60,
                Period=3600,
                Statistics=["Sum"],
            )
            return sum(point["Sum"] for point in answer["Datapoints"])

        eventually(lambda: sums("Invocations") == 2)
        assert sums("Errors") == 1

    def test_kinesis_metrics_come_from_the_engine(self, embedded_aws, cloudwatch, eventually):
        kinesis = embedded_aws.client("kinesis")
        name = f"stream-{uuid.uuid4().hex[:8]}"
        kinesis.create_stream(StreamName=name, ShardCount=1)
        kinesis.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
        for _ in range(3):
            kinesis.put_record(StreamName=name, PartitionKey="k", Data=b"12345")

        def incoming(metric):
            answer = cloudwatch.get_metric_statistics(
                Namespace="AWS/Kinesis",
                MetricName=metric,
                Dimensions=[{"Name": "StreamName", "Value": name}],
                StartTime=time.time() - 600,
                EndTime=time.time() + 60,
                Period=3600,
                Statistics=["Sum"],
            )
            return sum(point["Sum"] for point in answer["Datapoints"])

        eventually(lambda: incoming("IncomingRecords") == 3)
        assert incoming("IncomingBytes") >= 15
