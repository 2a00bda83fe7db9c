"""The SDK with the data of a few services: what is in it, what works with it, and what does not."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cdk.templates import of_type

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ("botocore", "boto3", "s3transfer", "jmespath", "dateutil", "urllib3")


@pytest.fixture(scope="module")
def sdk_data():
    from shardfleet_cdk import sdk_data  # noqa: PLC0415 - starts Node, which collecting shall not

    return sdk_data


@pytest.fixture(scope="module")
def packages(tmp_path_factory, sdk_data):
    """The SDK that is installed here, copied and pruned; `ses` is the handler's."""
    folder = tmp_path_factory.mktemp("sdk")
    for name in INSTALLED:
        found = Path(find_spec(name).origin).parent
        shutil.copytree(found, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(find_spec("six").origin, folder)
    sdk_data.prune(folder, ["ses"])
    return folder


def folders(packages, name):
    return {each.name for each in (packages / name / "data").iterdir() if each.is_dir()}


def test_only_the_services_that_are_used_have_data(packages):
    used = {"dynamodb", "kinesis", "s3", "sqs", "stepfunctions", "ses", "lambda"}
    assert folders(packages, "botocore") == used
    assert folders(packages, "boto3") <= used
    size = sum(file.stat().st_size for file in (packages / "botocore/data").rglob("*"))
    assert size < 6 * 1024 * 1024


def run(packages, program):
    environment = {
        "PYTHONPATH": f"{packages}:{ROOT / 'layer/python'}",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_every_client_of_the_fleet_and_of_the_handler_can_be_made(packages):
    program = """
import boto3, botocore
from shardfleet.adapters.clients.aws_clients import AwsClients, ConnectionLimits
clients = AwsClients(ConnectionLimits(writes=1, reads=1, streams=1))
for name in ("table_writes", "table_reads", "stream_records", "stream_control",
             "step_functions", "sqs", "s3"):
    print(getattr(clients, name).meta.service_model.service_name)
wire = clients.wire_to("arn:aws:kinesis:eu-central-1:111122223333:stream/orders")()
print(type(wire).__name__, boto3.client("ses").meta.service_model.service_name)
print(botocore.__file__)
"""
    *found, where = run(packages, program)
    assert found == [
        *("dynamodb", "dynamodb", "kinesis", "kinesis", "stepfunctions", "sqs", "s3"),
        *("KinesisWire", "ses"),
    ]
    assert where.startswith(str(packages))


def test_another_service_is_unknown(packages):
    program = """
import boto3, botocore.exceptions
try:
    boto3.client("ec2")
except botocore.exceptions.UnknownServiceError:
    print("unknown")
"""
    assert run(packages, program) == ["unknown"]


def test_a_service_that_the_sdk_does_not_have_is_refused_by_name(packages, sdk_data):
    with pytest.raises(sdk_data.UnknownServices, match="emails, mail found"):
        sdk_data.prune(packages, ["mail", "emails", "ses"])


def test_it_is_installed_at_the_versions_of_the_lock():
    pins = (ROOT / "layer/sdk/requirements.txt").read_text("utf-8").splitlines()
    locked = (ROOT / "requirements.lock").read_text("utf-8")
    pinned = [pin for pin in pins if "==" in pin]
    assert {pin.split("==")[0] for pin in pinned} >= {"boto3", "botocore"}
    assert [pin for pin in pinned if pin not in locked] == []


def template(tmp_path, **options):
    from aws_cdk import App, Stack  # noqa: PLC0415
    from aws_cdk import aws_kinesis as kinesis  # noqa: PLC0415
    from aws_cdk.assertions import Template  # noqa: PLC0415

    from shardfleet_cdk import HandlerCode, ShardFleet  # noqa: PLC0415
    from shardfleet_cdk.synthesis import NO_BUNDLING  # noqa: PLC0415

    folder = tmp_path / "handler"
    folder.mkdir(exist_ok=True)
    (folder / "handler.py").write_text("def handle(batch): ...\n", "utf-8")
    app = App(outdir=str(tmp_path / "out"), context=NO_BUNDLING)
    stack = Stack(app, "Stack")
    stream = kinesis.Stream(stack, "Stream")
    ShardFleet(stack, "Fleet", stream=stream, handler=HandlerCode(folder=folder), **options)
    return Template.from_stack(stack).to_json()


def test_a_fleet_brings_it_on_request_only_and_to_both_functions(tmp_path):
    without = template(tmp_path)
    assert len(of_type(without, "AWS::Lambda::LayerVersion")) == 2
    given = template(tmp_path, sdk_services=["ses"])
    layers = of_type(given, "AWS::Lambda::LayerVersion")
    (sdk,) = [name for name, layer in layers.items() if "SDK" in layer["Description"]]
    users = [
        function
        for function in of_type(given, "AWS::Lambda::Function").values()
        if {"Ref": sdk} in function.get("Layers", [])
    ]
    assert len(users) == 2
    other = template(tmp_path, sdk_services=["ses", "sns"])
    key = {each["Content"]["S3Key"] for each in layers.values()}
    assert key != {
        each["Content"]["S3Key"] for each in of_type(other, "AWS::Lambda::LayerVersion").values()
    }
