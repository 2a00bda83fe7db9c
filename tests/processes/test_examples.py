"""What is beside the examples' code: each is checked as what reads it checks it."""

import json
import shutil
import subprocess
from pathlib import Path

import boto3
import pytest
import yaml
from botocore.validate import ParamValidator

from shardfleet.config import options

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/processes"
GRACE_S = 120
# Of `shardfleet work` itself; every other option is one of the configuration.
OWN = {"--stream", "--application", "--health", "--yes"}


def deployment():
    return yaml.safe_load((EXAMPLES / "kubernetes.yaml").read_text("utf-8"))


def task():
    return json.loads((EXAMPLES / "ecs-task.json").read_text("utf-8"))


def test_the_task_definition_is_what_the_api_takes():
    """By botocore's model of ECS: names, types, and what is required."""
    model = boto3.client("ecs", region_name="eu-west-1").meta.service_model
    wanted = model.operation_model("RegisterTaskDefinition").input_shape
    assert ParamValidator().validate(task(), wanted).generate_report() == ""
    wrong = {**task(), "cpus": "256"}
    assert "cpus" in ParamValidator().validate(wrong, wanted).generate_report()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not there")
def test_the_unit_is_what_systemd_reads(tmp_path):
    """Its program is made to be there: systemd looks for it."""
    program = tmp_path / "shardfleet"
    program.write_text("#!/bin/sh\n", "utf-8")
    program.chmod(0o755)
    text = (EXAMPLES / "shardfleet.service").read_text("utf-8")
    unit = tmp_path / "clicks.service"
    unit.write_text(text.replace("/opt/clicks/venv/bin/shardfleet", str(program)), "utf-8")
    told = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line for line in told.stderr.splitlines() if "clicks.service" in line] == []
    assert told.returncode == 0, told.stderr


def words():
    """Return the words of each example's command line, without values."""
    container = deployment()["spec"]["template"]["spec"]["containers"][0]
    unit = (EXAMPLES / "shardfleet.service").read_text("utf-8")
    (exec_start,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    dockerfile = (EXAMPLES / "Dockerfile").read_text("utf-8").splitlines()
    yield from container["args"]
    yield from task()["containerDefinitions"][0]["command"]
    yield from exec_start.split()
    for line in dockerfile:
        if line.startswith(("CMD ", "ENTRYPOINT ")):
            yield from json.loads(line.partition(" ")[2])


def test_each_option_of_a_command_line_is_there():
    named = {word.partition("=")[0] for word in words() if word.startswith("--")}
    known = {f"--{option.name.replace('_', '-')}" for option in options()}
    assert named - known == OWN


def test_each_gives_a_process_the_time_to_hand_over():
    """A handler's time-out and what is kept back for the last writes, by their defaults."""
    defaults = {option.name: option.default for option in options()}
    assert defaults["handler_timeout_ms"] + defaults["turn_margin_ms"] < 1_000 * GRACE_S
    unit = (EXAMPLES / "shardfleet.service").read_text("utf-8")
    assert f"TimeoutStopSec={GRACE_S}\n" in unit
    assert task()["containerDefinitions"][0]["stopTimeout"] == GRACE_S
    pod = deployment()["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == GRACE_S
