"""Starting and stopping: what is there meanwhile, and that nothing is left afterwards."""

import importlib.metadata
import io
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from shardfleet_local.aws.launcher import EmbeddedAws, EmbeddedAwsFailed
from shardfleet_local.aws.patches import MinistackMismatch, Patch, check, missing_names
from shardfleet_local.aws.server import patches

pytestmark = pytest.mark.processes

SLEEPER = "import time\ndef handler(event, context):\n    time.sleep(event['seconds'])\n"


def is_gone(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def test_every_name_that_is_patched_exists_in_the_pinned_ministack():
    check(patches())


def test_a_missing_name_is_named_before_anything_starts():
    broken = Patch(gap="-", touches=("ministack.app:_no_such_name",), apply=lambda _: None)
    with pytest.raises(MinistackMismatch, match=r"lacks ministack\.app:_no_such_name.*==1\.5\.33"):
        check([broken])


def test_a_missing_module_is_a_missing_name():
    names = ["ministack.no_such_module:name", "ministack.app:app"]
    assert missing_names(names) == ["ministack.no_such_module:name"]


def test_another_version_of_ministack_is_refused(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "1.6.0")
    with pytest.raises(MinistackMismatch, match=r"needs ministack 1\.5\.33 and found 1\.6\.0"):
        check([])


def test_a_server_that_cannot_start_shows_its_log(monkeypatch):
    aws = EmbeddedAws()
    monkeypatch.setattr(aws, "_server_environment", lambda: {"PATH": os.defpath})
    monkeypatch.setattr(
        "shardfleet_local.aws.settings.ServerSettings.to_json", lambda _: '{"no_such_setting": 1}'
    )
    with pytest.raises(EmbeddedAwsFailed, match=r"ended while starting(.|\n)*KeyError: 'behaviou"):
        aws.start()
    assert aws.pid is None


def test_only_the_loopback_interface_is_listened_on(embedded_aws):
    inodes = {
        str(descriptor.readlink()) for descriptor in Path(f"/proc/{embedded_aws.pid}/fd").iterdir()
    }
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="utf-8").splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                listening.append(fields[1].partition(":")[0])
    assert listening == ["0100007F"]


def test_the_environment_lets_another_process_use_the_account(embedded_aws):
    script = "import boto3; print(boto3.client('sts').get_caller_identity()['Account'])"
    environment = {"PATH": os.environ["PATH"], **embedded_aws.environment()}
    answer = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == embedded_aws.account_id


def test_stopping_leaves_no_process_and_no_file(tmp_path, monkeypatch, eventually):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with EmbeddedAws() as aws:
        server = aws.pid
        client = aws.client("lambda")
        client.create_function(
            FunctionName="sleeper",
            Runtime="python3.13",
            Role="arn:aws:iam::111122223333:role/any",
            Timeout=600,
            Handler="index.handler",
            Code={"ZipFile": _zip(SLEEPER)},
        )
        client.invoke(FunctionName="sleeper", Payload='{"seconds": 0}')
        client.invoke(FunctionName="sleeper", Payload='{"seconds": 500}', InvocationType="Event")
        client.invoke(FunctionName="sleeper", Payload='{"seconds": 500}', InvocationType="Event")
        workers = eventually(lambda: len(aws.worker_processes()) > 1 and aws.worker_processes())
    assert is_gone(server)
    assert [each.pid for each in workers if not is_gone(each.pid)] == []
    assert list(tmp_path.iterdir()) == []


ORPHANING = """
import sys, time
from shardfleet_local.aws.launcher import EmbeddedAws
aws = EmbeddedAws().start()
client = aws.client("lambda")
client.create_function(FunctionName="f", Runtime="python3.13", Handler="index.handler",
    Role="arn:aws:iam::111122223333:role/any", Timeout=600,
    Code={"ZipFile": bytes.fromhex(sys.argv[1])})
client.invoke(FunctionName="f", Payload='{"seconds": 0}')
client.invoke(FunctionName="f", Payload='{"seconds": 500}', InvocationType="Event")
client.invoke(FunctionName="f", Payload='{"seconds": 500}', InvocationType="Event")
while len(aws.worker_processes()) < 2:
    time.sleep(0.05)
print(aws.pid, *(each.pid for each in aws.worker_processes()), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("victim", ["the launcher's process", "the server"])
def test_everything_ends_when_a_process_is_killed(victim, eventually, tmp_path):
    launcher = subprocess.Popen(
        [sys.executable, "-c", ORPHANING, _zip(SLEEPER).hex()],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with launcher:
        server, *workers = (int(word) for word in launcher.stdout.readline().split())
        assert len(workers) == 2
        if victim == "the server":
            os.kill(server, signal.SIGKILL)
        else:
            launcher.kill()
        eventually(lambda: all(is_gone(pid) for pid in (server, *workers)))
        launcher.kill()
    if victim == "the launcher's process":
        eventually(lambda: not list(tmp_path.iterdir()))


def test_an_unknown_operation_of_ours_is_refused_with_the_known_ones(embedded_aws):
    with pytest.raises(EmbeddedAwsFailed, match="GET /_shardfleet/workers"):
        embedded_aws.admin("GET", "nothing")


def _zip(text):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as members:
        members.writestr("index.py", text)
    return archive.getvalue()
