"""Subscriptions at the embedded AWS as AWS has them: TLS, and HTTP/2 by ALPN."""

import http.client
import json
import socket
import ssl
import time
from urllib.parse import urlsplit

import h2.config
import h2.connection
import h2.events
import pytest
from botocore.eventstream import EventStreamBuffer

from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.aws.settings import AwsBehaviour
from tests.adapters.tls import certificate

pytestmark = pytest.mark.processes
PATIENCE_S = 60
SHARD = "shardId-000000000000"


@pytest.fixture(scope="module")
def aws(tmp_path_factory):
    file = certificate(tmp_path_factory.mktemp("tls"))
    with EmbeddedAws(behaviour=AwsBehaviour(certificate=str(file))) as running:
        running.trusted = file
        yield running


class Subscriber:
    """A subscription by the library h2 alone: one connection, one stream."""

    def __init__(self, aws, consumer):
        url = urlsplit(aws.tls_endpoint_url)
        context = ssl.create_default_context(cafile=aws.trusted)
        context.set_alpn_protocols(["h2"])
        plain = socket.create_connection((url.hostname, url.port), PATIENCE_S)
        self.socket = context.wrap_socket(plain, server_hostname=url.hostname)
        self.http = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.http.initiate_connection()
        asked = {"ConsumerARN": consumer, "ShardId": SHARD, "StartingPosition": {"Type": "LATEST"}}
        headers = {
            ":method": "POST",
            ":scheme": "https",
            ":path": "/",
            ":authority": url.netloc,
            "content-type": "application/x-amz-json-1.1",
            "x-amz-target": "Kinesis_20131202.SubscribeToShard",
            "authorization": aws.key.authorization() + "20260101/us-east-1/kinesis/aws4_request",
        }
        self.http.send_headers(1, list(headers.items()))
        self.http.send_data(1, json.dumps(asked).encode(), end_stream=True)
        self._flush()
        self.frames = EventStreamBuffer()

    def events(self):
        """Yield what the library tells, as its class's name, and each event of Kinesis."""
        while data := self.socket.recv(65_536):
            for event in self.http.receive_data(data):
                if isinstance(event, h2.events.DataReceived):
                    self.frames.add_data(event.data)
                    for frame in self.frames:
                        headers = frame.headers
                        yield headers.get(":event-type") or headers[":exception-type"]
                else:
                    yield type(event).__name__
            self._flush()

    def until(self, wanted):
        seen = []
        for event in self.events():
            seen.append(event)
            if event == wanted:
                return seen
        return [*seen, "closed"]

    def _flush(self):
        self.socket.sendall(self.http.data_to_send())


@pytest.fixture
def subscriber(aws):
    """Return what subscribes at a consumer of a stream of one shard, and the stream's name."""
    kinesis, name = aws.client("kinesis"), f"s{time.time_ns()}"
    kinesis.create_stream(StreamName=name, ShardCount=1)
    kinesis.get_waiter("stream_exists").wait(StreamName=name)
    arn = kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamARN"]
    made = kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="c")["Consumer"]
    found = Subscriber(aws, made["ConsumerARN"])
    assert found.socket.selected_alpn_protocol() == "h2"
    found.until("initial-response")
    found.until("SubscribeToShardEvent")
    yield found, name
    found.socket.close()


def inject(aws, kind, stream, **fault):
    caller = http.client.HTTPConnection(urlsplit(aws.endpoint_url).netloc, timeout=PATIENCE_S)
    fault = {"Kind": kind, "StreamName": stream, **(fault or {"Count": 1})}
    headers = {
        "X-Amz-Target": "ShardfleetLocal.Faults",
        "Content-Type": "application/x-amz-json-1.1",
        "Authorization": aws.key.authorization() + "20260101/us-east-1/kinesis/aws4_request",
    }
    caller.request("POST", "/", json.dumps({"Action": "Inject", "Fault": fault}), headers)
    assert caller.getresponse().status == http.client.OK
    caller.close()


def put(aws, stream):
    aws.client("kinesis").put_record(StreamName=stream, PartitionKey="k", Data=b"a")


def test_records_are_pushed_over_http_2(aws, subscriber):
    found, stream = subscriber
    put(aws, stream)
    assert found.until("SubscribeToShardEvent")[-1] == "SubscribeToShardEvent"


def test_what_breaks_off_is_reset(aws, subscriber):
    found, stream = subscriber
    inject(aws, "Reset", stream)
    put(aws, stream)
    assert found.until("StreamReset")[-1] == "StreamReset"


def test_a_take_over_is_an_event_and_then_the_end(aws, subscriber):
    found, stream = subscriber
    inject(aws, "TakeOver", stream)
    put(aws, stream)
    assert "ResourceInUseException" in found.until("StreamEnded")
