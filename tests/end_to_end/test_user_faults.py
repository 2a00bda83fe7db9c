"""What people do wrong, deployed: for each, doctor names cause and remedy, and the others agree."""

import json
import os

import pytest

from tests.end_to_end.faulty_shop import FINE, deployed_shop

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        "SHARDFLEET_TEST_FAULTS" not in os.environ, reason="takes minutes: make faults"
    ),
]

SOURCES = {
    "signature": "handle = lambda a, b, c: None\n",
    "missing package": f"import no_such_package\n{FINE}",
    "import error": f"{FINE}raise KeyError('PRICES')\n",
    "syntax error": f"import broken\n{FINE}",
    # What Lambda does when memory runs out.
    "memory": "import os, signal\ndef handle(batch): os.kill(os.getpid(), signal.SIGKILL)\n",
    "hang": "import time\ndef handle(batch): time.sleep(3_600)\n",
    "exit": "import os\ndef handle(batch): os._exit(3)\n",
    "poison": "def handle(batch): raise ValueError('a record that nobody can handle')\n",
}
SHARD = "shardId-000000000000"


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    with deployed_shop(folder, handler_timeout_ms=2_000, max_turn_ms=120_000) as shop:
        yield shop


def told(shop, finding, *words):
    """Assert that all commands say the same, and that none says that nothing is wrong."""
    assert finding["remedy"]
    _, text = shop.ask("doctor")
    assert "Nothing is wrong" not in text
    for word in words:
        assert word in text
    for command in (["status"], ["explain", SHARD], ["leases", "--json"]):
        _, text = shop.ask(*command)
        assert words[0] in " ".join(text.split()), (command, text)


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("signature", "worker-signature", ["it takes neither", "orders.py, line 1"]),
        ("missing package", "worker-import", ["'no_such_package'", "orders.py, line 1"]),
        ("import error", "worker-import", ["KeyError: 'PRICES'", "orders.py, line 2"]),
        ("syntax error", "worker-import", ["SyntaxError", "broken.py, line 2"]),
    ],
)
def test_a_handler_that_does_not_work_is_named_with_its_line_and_remedy(shop, fault, code, words):
    shop.set(SOURCES[fault])
    told(shop, shop.finds(code), *words)
    shop.heal()


@pytest.mark.parametrize(
    ("fault", "code"),
    [("memory", "worker-memory"), ("hang", "worker-time-out"), ("exit", "worker-exit")],
)
def test_a_call_that_ends_the_process_is_told_until_its_record_is_charged(shop, fault, code):
    shop.set(SOURCES[fault])
    found = shop.finds(code, "shard-stopped")
    assert found["remedy"]
    state = "stopped" if found["code"] == "shard-stopped" else "fail"
    for command in (["status"], ["explain", "fleet"]):
        text = shop.ask(*command)[1]
        assert state in text or "stopped" in text
    assert "stopped" in shop.finds("shard-stopped")["found"]
    shop.heal()


def test_a_poison_record_is_named_with_its_place(shop):
    shop.set(SOURCES["poison"])
    told_of = shop.finds("shard-stopped")
    assert "ValueError" in told_of["found"]
    assert "stopped" in shop.ask("status")[1]
    assert "It is stopped" in shop.ask("explain", SHARD)[1]
    shop.heal()


def test_a_missing_right_is_named(shop):
    iam, lambda_ = shop.fleet.client("iam"), shop.fleet.client("lambda")
    found = lambda_.get_function_configuration(FunctionName=shop.fleet.outputs["WorkerFunction"])
    role = found["Role"].rpartition("/")[2]
    deny = {"Effect": "Deny", "Action": "kinesis:GetRecords", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [deny]})
    iam.put_role_policy(RoleName=role, PolicyName="Denied", PolicyDocument=policy)
    # It may be that a new right is not seen yet (I01): a remark at once, believed after a minute.
    remark = shop.finds("handler-remark", severity="WARNING")
    assert "GetRecords" in remark["found"]
    assert "grant the worker's role" in remark["found"]
    told(shop, shop.finds("worker-right", within_s=90), "GetRecords", "grant the worker's role")
    iam.delete_role_policy(RoleName=role, PolicyName="Denied")
    shop.heal()


def test_the_lines_of_the_worker_hold_the_cause(shop):
    shop.set(SOURCES["import error"])
    shop.finds("worker-import")
    code, text = shop.ask("logs", "s0001", "--since", "2m")
    assert code == 0
    assert "TurnFailed" in text
    assert "PRICES" in text
    shop.heal()


def test_a_wrong_region_is_named(shop, monkeypatch):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "ap-south-1")
    for command, wanted in (("doctor", 1), ("status", 2), ("explain", 2)):
        code, text = shop.ask(command)
        assert code == wanted
        assert "check region" in text


def test_a_stream_that_is_gone_and_then_a_table_are_named(shop):
    shop.fleet.client("kinesis").delete_stream(
        StreamName=shop.fleet.outputs["StreamName"], EnforceConsumerDeletion=True
    )
    assert "stream" in shop.finds("stream-missing")["found"]
    assert "stream it does not exist" in shop.said("status")
    assert "not found" in shop.said("explain", SHARD)
    dynamodb, table = shop.fleet.client("dynamodb"), shop.fleet.outputs["LeaseTable"]
    dynamodb.update_table(TableName=table, DeletionProtectionEnabled=False)
    dynamodb.delete_table(TableName=table)
    assert shop.finds("lease-table-missing")["remedy"]
    assert "could not be looked at" not in shop.said("doctor")
    for command in ("status", "explain"):
        assert "lease table" in shop.said(command)
    code, text = shop.ask("status")
    assert code == 2
    assert table in text
