"""
What Kinesis promises, asked through boto3 of every Kinesis at hand.

    engine          our stand-alone server, started here (always)
    kinesis-local   etspaceman/kinesis-mock from npm, the second judge: where `npm install` has
                    put it, or in the package folder SHARDFLEET_TEST_KINESIS_LOCAL names
    url             whatever SHARDFLEET_TEST_KINESIS_ENDPOINT names
    aws             a real account, with SHARDFLEET_TEST_AWS=1; streams are created and deleted

Each expectation says where it comes from: `documented` names a page of the API reference or the
developer guide, `observed` says who has seen it though AWS does not write it down. `fails_on` names
an endpoint that does otherwise, the fact that it does not keep, and how; there the test must fail.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

REAL_ACCOUNT = os.environ.get("SHARDFLEET_TEST_AWS") == "1"
URL = os.environ.get("SHARDFLEET_TEST_KINESIS_ENDPOINT")
INSTALLED = Path(__file__).resolve().parents[3] / "node_modules/kinesis-local"
KINESIS_LOCAL = Path(os.environ.get("SHARDFLEET_TEST_KINESIS_LOCAL") or INSTALLED)
PHASES = (
    "CREATE_STREAM",
    "DELETE_STREAM",
    "SPLIT_SHARD",
    "MERGE_SHARDS",
    "UPDATE_SHARD_COUNT",
    "REGISTER_STREAM_CONSUMER",
    "DEREGISTER_STREAM_CONSUMER",
    "START_STREAM_ENCRYPTION",
    "STOP_STREAM_ENCRYPTION",
)
PATIENCE_S = 120


def until(condition):
    """Ask again and again (another vendor's endpoint gives no other sign) until it is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := condition()):
        assert time.monotonic() < deadline, "the endpoint did not get there in time"
        time.sleep(0.05)
    return answer


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_engine():
    command = [sys.executable, "-P", "-m", "shardfleet_local.kinesis"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    told = json.loads(process.stdout.readline())
    key = {name.lower(): value for name, value in told["environment"].items()}
    return process, told["endpoint"], key


def start_kinesis_local():
    node = shutil.which("node")
    if node is None or not (KINESIS_LOCAL / "main.js").exists():
        pytest.skip("kinesis-local is not there: npm install, or SHARDFLEET_TEST_KINESIS_LOCAL")
    port = free_port()
    environment = {
        **os.environ,
        **{f"{phase}_DURATION": "20ms" for phase in PHASES},
        # Without this it looks for the certificate in the working directory, and stops.
        "KINESIS_MOCK_CERT_PATH": str(KINESIS_LOCAL / "server.json"),
        "KINESIS_MOCK_PLAIN_PORT": str(port),
        "KINESIS_MOCK_TLS_PORT": str(free_port()),
        "LOG_LEVEL": "ERROR",
    }
    process = subprocess.Popen(
        [node, str(KINESIS_LOCAL / "main.js")],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return process, f"http://127.0.0.1:{port}", ANY_KEY


# As an account, where an access key may be one.
ANY_KEY = {"aws_access_key_id": "0" * 12, "aws_secret_access_key": "x"}
STARTERS = {"engine": start_engine, "kinesis-local": start_kinesis_local}
ENDPOINTS = [pytest.param(name, marks=pytest.mark.processes) for name in STARTERS]
ENDPOINTS += ["url"] if URL else []
ENDPOINTS += [pytest.param("aws", marks=pytest.mark.aws)] if REAL_ACCOUNT else []


def is_listening(url):
    try:
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=1):
            return True
    except OSError:
        return False


@pytest.fixture(scope="package", params=ENDPOINTS)
def endpoint(request):
    """Name, URL and key of an endpoint; ours are started, and stopped afterwards."""
    if request.param not in STARTERS:
        yield request.param, *((URL, ANY_KEY) if request.param == "url" else (None, {}))
        return
    process, url, key = STARTERS[request.param]()
    try:
        until(lambda: is_listening(url))
        yield request.param, url, key
    finally:
        # Told to end, kinesis-local waits half a minute for subscriptions that are still open.
        process.send_signal(signal.SIGKILL if request.param == "kinesis-local" else signal.SIGTERM)
        process.wait(PATIENCE_S)
        if process.stdout is not None:
            process.stdout.close()


class Stream:
    """A stream of its own for one test, with a client for it and one that never retries."""

    until = staticmethod(until)

    def __init__(self, make_client):
        self.client = make_client()
        self.hasty = make_client(retries={"total_max_attempts": 1})
        self.name = f"shardfleet-contract-{uuid.uuid4().hex[:12]}"

    def create(self, shards=1):
        self.client.create_stream(StreamName=self.name, ShardCount=shards)
        return self.settled()

    def settled(self):
        until(lambda: self.summary()["StreamStatus"] == "ACTIVE")
        return self

    def summary(self):
        answer = self.client.describe_stream_summary(StreamName=self.name)
        return answer["StreamDescriptionSummary"]

    def is_gone(self):
        try:
            self.summary()
        except self.client.exceptions.ResourceNotFoundException:
            return True
        return False

    @property
    def arn(self):
        return self.summary()["StreamARN"]

    def shards(self, **request):
        return self.client.list_shards(StreamName=self.name, **request)["Shards"]

    def put(self, data, shard=None, key="k"):
        explicit = {}
        if shard is not None:
            explicit["ExplicitHashKey"] = shard["HashKeyRange"]["StartingHashKey"]
        return self.client.put_record(
            StreamName=self.name, PartitionKey=key, Data=data.encode(), **explicit
        )

    def iterator(self, shard_id, kind="TRIM_HORIZON", **position):
        return self.client.get_shard_iterator(
            StreamName=self.name, ShardId=shard_id, ShardIteratorType=kind, **position
        )["ShardIterator"]

    def get(self, shard_id, kind="TRIM_HORIZON", limit=1000, **position):
        iterator = self.iterator(shard_id, kind, **position)
        return self.client.get_records(ShardIterator=iterator, Limit=limit)

    def drain(self, shard_id, kind="TRIM_HORIZON", **position):
        """Read to the end of a closed shard, or to the tip of an open one."""
        iterator, data = self.iterator(shard_id, kind, **position), []
        while True:
            answer = self.client.get_records(ShardIterator=iterator)
            data += [record["Data"].decode() for record in answer["Records"]]
            iterator = answer.get("NextShardIterator")
            at_tip = answer["MillisBehindLatest"] == 0 and not answer["Records"]
            if iterator is None or at_tip:
                return data, answer

    def split(self, shard):
        hashes = shard["HashKeyRange"]
        middle = (int(hashes["StartingHashKey"]) + int(hashes["EndingHashKey"]) + 1) // 2
        self.client.split_shard(
            StreamName=self.name,
            ShardToSplit=shard["ShardId"],
            NewStartingHashKey=str(middle),
        )
        self.settled()

    def merge(self, one, other):
        self.client.merge_shards(
            StreamName=self.name,
            ShardToMerge=one["ShardId"],
            AdjacentShardToMerge=other["ShardId"],
        )
        self.settled()

    @staticmethod
    def ids(shards):
        return [int(shard["ShardId"][-12:]) for shard in shards]

    @staticmethod
    def refused(*codes):
        """A context manager that expects a refusal with one of the codes."""
        return pytest.raises(ClientError, match="|".join(rf"\({code}\)" for code in codes))


@pytest.fixture
def stream(endpoint):
    """A Stream that is not yet created, and is deleted afterwards."""
    _, url, key = endpoint

    def make_client(**config):
        settings = Config(connect_timeout=10, read_timeout=20, **config)
        return boto3.client("kinesis", endpoint_url=url, config=settings, **key)

    made = Stream(make_client)
    yield made
    with contextlib.suppress(made.client.exceptions.ResourceNotFoundException):
        made.client.delete_stream(StreamName=made.name, EnforceConsumerDeletion=True)


@pytest.fixture(autouse=True)
def source(request):
    """Every expectation says where it comes from."""
    named = [each.args for each in request.node.iter_markers() if each.name in SOURCES]
    assert len(named) == 1, "mark the test as documented(page) or observed(by), one of them"


SOURCES = ("documented", "observed")
