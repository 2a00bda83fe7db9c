"""The examples, each deployed as it stands: windows, idempotency, and an HTTP sink with a rate."""

import http.server
import json
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.end_to_end.cloud import deployed, plain, wait_until

pytestmark = pytest.mark.processes

EXAMPLES = Path(__file__).resolve().parents[2] / "functions/examples"


def put(fleet, payloads, *, key_of):
    """Put payloads one by one and return the sequence number of the last one."""
    for n, payload in enumerate(payloads):
        answer = fleet.client("kinesis").put_record(
            StreamName=fleet.outputs["StreamName"], PartitionKey=key_of(n), Data=payload.encode()
        )
    return answer["SequenceNumber"]


def is_checkpointed(fleet, number):
    return {lease["checkpoint"] for lease in fleet.leases().values()} == {number}


def create_table(fleet, name, **keys):
    """Create a table with these keys, by name their type, the partition key first."""
    kinds = zip(keys, ("HASH", "RANGE"), strict=False)
    fleet.client("dynamodb").create_table(
        TableName=name,
        AttributeDefinitions=[
            {"AttributeName": key, "AttributeType": kind} for key, kind in keys.items()
        ],
        KeySchema=[{"AttributeName": key, "KeyType": kind} for key, kind in kinds],
        BillingMode="PAY_PER_REQUEST",
    )


# --- word count

LINES = ["to be or not to be", "that is the question", "to sleep to dream"] * 8


@pytest.fixture(scope="module")
def counting(tmp_path_factory):
    with deployed(
        tmp_path_factory.mktemp("counting"),
        handler=EXAMPLES / "word_count",
        function="handler:handle",
        environment={"COUNTS_TABLE": "counts"},
        config={"tumbling_window_ms": 5_000, "max_workers": 1},
        enforce_iam=False,
    ) as fleet:
        create_table(fleet, "counts", window="N", shard="S")
        yield fleet


def test_the_words_of_all_windows_are_those_that_were_put(counting):
    put(counting, LINES, key_of=lambda n: f"k{n % 3}")
    wanted = Counter(" ".join(LINES).split())

    def counted():
        items = counting.client("dynamodb").scan(TableName="counts", ConsistentRead=True)["Items"]
        counts = Counter()
        for item in items:
            counts.update({word: int(n) for word, n in plain(item)["words"].items()})
        return counts if counts.total() >= wanted.total() else None

    found = wait_until(counted, what="the windows' words", within_s=120, fleet=counting)
    assert found == wanted


# --- Powertools: batch and idempotency

ORDERS, REFUSED = 30, 11


@pytest.fixture(scope="module")
def charging(tmp_path_factory):
    with deployed(
        tmp_path_factory.mktemp("charging"),
        handler=EXAMPLES / "powertools_idempotency",
        function="handler:handler",
        environment={"CHARGED_TABLE": "charged"},
        config={"max_attempts": 3, "on_exhausted": "skip", "max_workers": 1},
        enforce_iam=False,
    ) as fleet:
        create_table(fleet, "charged", id="S")
        yield fleet


def test_each_order_is_charged_once_though_the_refused_one_brings_others_again(charging):
    orders = [{"id": n, "amount": -1 if n == REFUSED else n} for n in range(ORDERS)]
    last = put(charging, map(json.dumps, orders), key_of=lambda n: "k")

    wait_until(
        lambda: is_checkpointed(charging, last),
        what="the last order's checkpoint",
        within_s=120,
        fleet=charging,
    )
    lines = [json.loads(line) for line in charging.logs() if '"order charged"' in line]
    assert sorted(line["order"] for line in lines) == sorted(set(range(ORDERS)) - {REFUSED})


# --- an HTTP sink with a rate

RECORDS, KEYS, PER_SECOND, AT_ONCE = 60, 6, 20, 4


class Sink(http.server.BaseHTTPRequestHandler):
    """Takes what is posted; refuses each seventh request."""

    def do_POST(self):
        data = int(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.asked += 1
            is_refused = server.asked % 7 == 0
            if not is_refused:
                server.taken.append((self.headers["Partition-Key"], data, time.monotonic()))
        self.send_response(503 if is_refused else 204)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def sink():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sink) as server:
        server.lock, server.asked, server.taken = threading.Lock(), 0, []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def posting(tmp_path_factory, sink):
    with deployed(
        tmp_path_factory.mktemp("posting"),
        handler=EXAMPLES / "http_sink",
        function="handler:handle",
        environment={"SINK_URL": f"http://127.0.0.1:{sink.server_address[1]}/"},
        config={
            "parallelism": AT_ONCE,
            "handler_records_per_second": PER_SECOND,
            "max_attempts": 0,
            "max_workers": 1,
        },
        enforce_iam=False,
    ) as fleet:
        yield fleet


def test_every_record_is_posted_each_key_in_order_and_no_faster_than_the_rate(posting, sink):
    last = put(posting, map(str, range(RECORDS)), key_of=lambda n: f"k{n % KEYS}")

    wait_until(
        lambda: is_checkpointed(posting, last),
        what="the last record's checkpoint",
        within_s=120,
        fleet=posting,
    )
    for key in range(KEYS):
        numbers = [data for found, data, _ in sink.taken if found == f"k{key}"]
        assert list(dict.fromkeys(numbers)) == list(range(key, RECORDS, KEYS))
    # No machine is too slow for this: it says what is never sooner.
    first_s, last_s = sink.taken[0][2], sink.taken[-1][2]
    assert last_s - first_s >= RECORDS / PER_SECOND - 1
