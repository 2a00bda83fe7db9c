"""Metrics for an OpenTelemetry collector: what it is sent, and that it cannot harm the fleet."""

import http.server
import io
import json
import threading

import pytest

from shardfleet.adapters.telemetry.emf import EmfEventSink, Telling
from shardfleet.adapters.telemetry.otlp import OtlpMetrics
from shardfleet.config import FleetConfig
from shardfleet.errors import ConfigurationError
from shardfleet.events.delivery import BatchHandled, PageRead
from shardfleet.events.worker import WorkerBeat

HANDLED = {
    "worker_id": "orders-s0001",
    "attempt": 1,
    "duration_ms": 40,
    "millis_behind_latest": 700,
}


class Clock:
    def __init__(self):
        self.ms = 1_700_000_000_000

    def now_ms(self):
        return self.ms

    def monotonic_ms(self):
        return self.ms


@pytest.fixture
def collector():
    """A collector on loopback; `answers` are what it says next, 200 when there are none."""

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            size = int(self.headers["Content-Length"])
            server.bodies.append((self.path, json.loads(self.rfile.read(size))))
            self.send_response(server.answers.pop(0) if server.answers else 200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    server.bodies, server.answers = [], []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def sink_to(collector, clock, **telling):
    port = collector.server_address[1] if collector else 9
    otlp = OtlpMetrics(f"http://127.0.0.1:{port}/v1/metrics", clock=clock)
    return EmfEventSink(
        "orders", clock=clock, telling=Telling(**telling), otlp=otlp, stream=io.StringIO()
    )


def metrics_of(body):
    (resource,) = body["resourceMetrics"]
    assert resource["resource"]["attributes"] == [
        {"key": "service.name", "value": {"stringValue": "shardfleet"}}
    ]
    (scope,) = resource["scopeMetrics"]
    return {(metric["name"], attributes_of(metric)): metric for metric in scope["metrics"]}


def point_of(metric):
    (point,) = (metric.get("sum") or metric.get("gauge"))["dataPoints"]
    return point


def attributes_of(metric):
    return tuple(each["value"]["stringValue"] for each in point_of(metric)["attributes"])


def test_what_counts_is_a_sum_since_the_last_time_and_what_is_read_a_gauge(collector):
    clock = Clock()
    sink = sink_to(collector, clock)
    for shard, done in (("shard-1", 3), ("shard-2", 4), ("shard-1", 5)):
        sink.emit(BatchHandled(lease_key=shard, records=done, done=done, **HANDLED))
    sink.emit(
        PageRead(
            lease_key="shard-1",
            stream_records=1,
            brings=True,
            size_bytes=90,
            millis_behind_latest=0,
        )
    )
    for held in (1, 2):
        sink.emit(WorkerBeat(slot_id="s1", worker_id="orders-s0001", held_leases=held))
    clock.ms += 5_000
    sink.flush()

    ((path, body),) = collector.bodies
    found = metrics_of(body)
    assert path == "/v1/metrics"
    records = found["shardfleet.records", ("orders",)]
    assert records["sum"]["aggregationTemporality"] == 1
    assert records["sum"]["isMonotonic"] is True
    assert point_of(records) == {
        "attributes": [{"key": "fleet", "value": {"stringValue": "orders"}}],
        "startTimeUnixNano": "1700000000000000000",
        "timeUnixNano": "1700000005000000000",
        "asDouble": 12.0,
    }
    assert point_of(found["shardfleet.bytes", ("orders",)])["asDouble"] == 90
    assert found["shardfleet.bytes", ("orders",)]["unit"] == "By"
    assert point_of(found["shardfleet.handler_calls", ("orders",)])["asDouble"] == 3
    lag = found["shardfleet.millis_behind_latest", ("orders",)]
    assert (lag["unit"], point_of(lag)["asDouble"]) == ("ms", 700)
    assert "startTimeUnixNano" not in point_of(lag)
    assert point_of(found["shardfleet.worker_leases", ("orders",)])["asDouble"] == 2


def test_with_metrics_per_shard_a_shard_is_an_attribute(collector):
    sink = sink_to(collector, Clock(), all_metrics=True, shard_metrics=True)
    for shard, done in (("shard-1", 3), ("shard-2", 4)):
        sink.emit(BatchHandled(lease_key=shard, records=done, done=done, **HANDLED))
    sink.flush()

    found = metrics_of(collector.bodies[0][1])
    assert point_of(found["shardfleet.records", ("orders", "shard-2")])["asDouble"] == 4


def test_the_second_time_begins_where_the_first_ended(collector):
    clock = Clock()
    sink = sink_to(collector, clock)
    for _ in range(2):
        sink.emit(
            PageRead(
                lease_key="shard-1",
                stream_records=1,
                brings=True,
                size_bytes=90,
                millis_behind_latest=0,
            )
        )
        clock.ms += 1_000
        sink.flush()

    points = [
        point_of(metrics_of(body)["shardfleet.bytes", ("orders",)]) for _, body in collector.bodies
    ]
    assert points[0]["timeUnixNano"] == points[1]["startTimeUnixNano"]
    assert [point["asDouble"] for point in points] == [90, 90]


@pytest.mark.parametrize("answer", [500, None])
def test_a_collector_that_fails_or_is_not_there_costs_metrics_only(collector, answer, capsys):
    if answer:
        collector.answers.append(answer)
    sink = sink_to(collector if answer else None, Clock())
    sink.emit(
        PageRead(
            lease_key="shard-1",
            stream_records=1,
            brings=True,
            size_bytes=90,
            millis_behind_latest=0,
        )
    )
    sink.flush()

    assert "metrics not sent to otlp_endpoint: " in capsys.readouterr().err
    assert not [thread for thread in threading.enumerate() if thread.name == "otlp"]


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://127.0.0.1:9/v1/metrics?api-key=s3cret",
        "http://127.0.0.1:9/v1 s3cret",
        "http://[s3cret/v1",
        "http://127.0.0.1:s3cret/",
    ],
)
def test_an_address_that_holds_a_token_is_told_to_nobody(endpoint, capsys):
    otlp = OtlpMetrics(endpoint, clock=Clock())
    otlp.take({"x": [1]}, {})
    otlp.finish()

    err = capsys.readouterr().err
    assert "metrics not sent to otlp_endpoint: " in err
    assert "s3cret" not in err


def test_an_endpoint_that_is_refused_tells_no_token():
    given = {"fleet": "f", "stream_arn": "s", "lease_table": "l", "state_table": "t"}
    with pytest.raises(ConfigurationError, match="otlp_endpoint: ") as caught:
        FleetConfig(**given, otlp_endpoint="collector/v1?api-key=s3cret")
    assert "s3cret" not in str(caught.value)


def test_an_endpoint_that_is_no_url_is_refused():
    with pytest.raises(ConfigurationError, match="otlp_endpoint: 'localhost:4318' found"):
        FleetConfig(
            fleet="f",
            stream_arn="s",
            lease_table="l",
            state_table="t",
            otlp_endpoint="localhost:4318",
        )
