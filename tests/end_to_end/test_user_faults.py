"""What people do wrong, deployed: for each, doctor names cause and remedy, and the others agree."""

import json
import os
import signal
from contextlib import suppress

import pytest

from shardfleet_ops.cli import app as application
from tests.end_to_end.cloud import deployed, wait_until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        "SHARDFLEET_TEST_FAULTS" not in os.environ, reason="takes minutes: make faults"
    ),
]

HANDLER = """
import os, signal, time
from pathlib import Path

FAULT = Path(os.environ["FAULT_FILE"]).read_text("utf-8")
if FAULT == "missing package":
    import no_such_package
if FAULT == "import error":
    raise KeyError("PRICES")
if FAULT == "syntax error":
    import broken


def work(batch):
    if FAULT == "memory":  # What Lambda does when it runs out.
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "hang":
        time.sleep(3_600)
    if FAULT == "exit":
        os._exit(3)
    if FAULT == "poison":
        raise ValueError("a record that nobody can handle")


handle = (lambda a, b, c: None) if FAULT == "signature" else work
"""
SHARD = "shardId-000000000000"
WITHIN_S = 30


class Shop:
    """The fleet, its fault, and what a person sees of it."""

    def __init__(self, fleet, fault, monkeypatch, capsys):
        self.fleet = fleet
        self.file = fault
        self.capsys = capsys
        for name, value in fleet.aws.environment().items():
            monkeypatch.setenv(name, value)

    def ask(self, *arguments):
        code = application.run(list(arguments))
        said = self.capsys.readouterr()
        return code, said.out + said.err

    def said(self, *arguments):
        """Return what a command says, on one line."""
        return " ".join(self.ask(*arguments)[1].split())

    def set(self, fault):
        """Let the handler be so from now on, in new processes."""
        self.file.write_text(fault, "utf-8")
        for process in self.fleet.aws.worker_processes(self.fleet.outputs["WorkerFunction"]):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        self.fleet.client("kinesis").put_record(
            StreamName=self.fleet.outputs["StreamName"], PartitionKey="k", Data=b"{}"
        )

    def findings(self):
        """Return the doctor's errors by code, only if it ended with 1."""
        code, said = self.ask("doctor", "--json")
        errors = {f["code"]: f for f in json.loads(said) if f["severity"] == "ERROR"}
        assert (code == 1) == bool(errors)
        return errors

    def finds(self, *codes):
        """Wait until the doctor has one of these errors, and return it."""
        return wait_until(
            lambda: next((f for c, f in self.findings().items() if c in codes), None),
            what=f"the doctor says {' or '.join(codes)}",
            within_s=WITHIN_S,
            fleet=self.fleet,
        )

    def heal(self):
        self.set("")
        self.ask("resume", "--all", "--yes")
        wait_until(lambda: not self.findings(), what="health", within_s=120, fleet=self.fleet)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    code = folder / "code"
    code.mkdir()
    (code / "shop.py").write_text(HANDLER, "utf-8")
    (code / "broken.py").write_text("x = 1\ndef prices(:\n", "utf-8")
    (folder / "fault").write_text("", "utf-8")
    with deployed(
        folder,
        handler=code,
        function="shop:handle",
        environment={"FAULT_FILE": str(folder / "fault")},
        config={
            "handler_timeout_ms": 2_000,
            "max_turn_ms": 5_000,
            "max_attempts": 2,
            "max_retry_ms": 300,
            "max_workers": 1,
        },
    ) as fleet:
        yield fleet, folder / "fault"


@pytest.fixture
def shop(deployment, monkeypatch, capsys):
    return Shop(*deployment, monkeypatch, capsys)


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
        ("signature", "worker-signature", ["it takes neither", "shop.py, line 25"]),
        ("missing package", "worker-import", ["'no_such_package'", "shop.py, line 7"]),
        ("import error", "worker-import", ["KeyError: 'PRICES'", "shop.py, line 9"]),
        ("syntax error", "worker-import", ["SyntaxError", "broken.py, line 2"]),
    ],
)
def test_a_handler_that_does_not_work_is_named_with_its_line_and_remedy(shop, fault, code, words):
    shop.set(fault)
    told(shop, shop.finds(code), *words)
    shop.heal()


@pytest.mark.parametrize(
    ("fault", "code"),
    [("memory", "worker-memory"), ("hang", "worker-time-out"), ("exit", "worker-exit")],
)
def test_a_call_that_ends_the_process_is_told_until_its_record_is_charged(shop, fault, code):
    shop.set(fault)
    found = shop.finds(code, "shard-stopped")
    assert found["remedy"]
    state = "stopped" if found["code"] == "shard-stopped" else "fail"
    for command in (["status"], ["explain", "fleet"]):
        text = shop.ask(*command)[1]
        assert state in text or "stopped" in text
    assert "stopped" in shop.finds("shard-stopped")["found"]
    shop.heal()


def test_a_poison_record_is_named_with_its_place(shop):
    shop.set("poison")
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
    told(shop, shop.finds("worker-right"), "GetRecords", "grant the worker's role")
    iam.delete_role_policy(RoleName=role, PolicyName="Denied")
    shop.heal()


def test_the_lines_of_the_worker_hold_the_cause(shop):
    shop.set("import error")
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
    shop.fleet.client("dynamodb").delete_table(TableName=shop.fleet.outputs["LeaseTable"])
    assert shop.finds("lease-table-missing")["remedy"]
    assert "could not be looked at" not in shop.said("doctor")
    for command in ("status", "explain"):
        assert "lease table" in shop.said(command)
    code, text = shop.ask("status")
    assert code == 2
    assert shop.fleet.outputs["LeaseTable"] in text
