"""What a fleet runs on is an option; its layers are made for it, and a new one reaches workers."""

import json
import sys
from pathlib import Path

import pytest

from shardfleet.errors import ConfigurationError
from tests.cdk.templates import of_type

ROOT = Path(__file__).resolve().parents[2]
ARN = "arn:aws:kinesis:eu-central-1:999999999999:stream/orders"


@pytest.fixture
def template(handler_folder, new_app):
    """Return the template of a fleet with options, in an app without any feature flag."""
    from aws_cdk import Stack  # noqa: PLC0415
    from aws_cdk import aws_kinesis as kinesis  # noqa: PLC0415
    from aws_cdk.assertions import Template  # noqa: PLC0415

    from shardfleet_cdk import HandlerCode, ShardFleet  # noqa: PLC0415

    def make(**options):
        stack = Stack(new_app(), "Stack")
        stream = kinesis.Stream.from_stream_arn(stack, "Orders", ARN)
        handler = HandlerCode(folder=handler_folder)
        fleet = ShardFleet(stack, "Fleet", stream=stream, handler=handler, **options)
        told = [str(each.data) for each in fleet.node.metadata if each.type == "aws:cdk:info"]
        return Template.from_stack(stack).to_json(), " ".join(told)

    return make


def keys(found):
    layers = of_type(found, "AWS::Lambda::LayerVersion").values()
    return {layer["Content"]["S3Key"] for layer in layers}


def test_all_functions_and_layers_are_of_the_chosen_python_and_processor(template):
    from aws_cdk import aws_lambda as lambda_  # noqa: PLC0415

    usual, told = template()
    assert "x86_64" not in told
    chosen, told = template(
        architecture=lambda_.Architecture.X86_64, runtime=lambda_.Runtime.PYTHON_3_13
    )
    functions = of_type(chosen, "AWS::Lambda::Function").values()
    layers = of_type(chosen, "AWS::Lambda::LayerVersion").values()
    assert len(functions) == 3
    assert {(f["Runtime"], *f["Architectures"]) for f in functions} == {("python3.13", "x86_64")}
    assert {(*a["CompatibleRuntimes"], *a["CompatibleArchitectures"]) for a in layers} == {
        ("python3.13", "x86_64")
    }
    assert not keys(usual) & keys(chosen)
    # $0.0000166667 and $0.0000133334 a GB-s: https://aws.amazon.com/lambda/pricing/
    assert "x86_64 adds 25 % to Lambda's" in told


def test_a_python_without_wheels_for_lambda_is_refused_by_name(template):
    """Python 3.11 runs on Amazon Linux 2, whose glibc is older than the wheels'."""
    from aws_cdk import aws_lambda as lambda_  # noqa: PLC0415

    allowed = "one of python3.12, python3.13, python3.14 allowed"
    with pytest.raises(ConfigurationError, match=f"Stack/Fleet: runtime python3.11: {allowed}"):
        template(runtime=lambda_.Runtime.PYTHON_3_11)


def test_a_new_library_reaches_the_workers_of_an_app_without_feature_flags(template, monkeypatch):
    """The alias names a version; a version that is not made anew keeps the layers it had."""
    from shardfleet_cdk import bundling  # noqa: PLC0415

    def version(found):
        (name,) = [n for n in of_type(found, "AWS::Lambda::Version") if "Worker" in n]
        return name

    first, again = template()[0], template()[0]
    assert version(first) == version(again)
    monkeypatch.setattr(bundling, "package_fingerprint", lambda _: "another library")
    newer, _ = template()
    assert keys(newer) != keys(first)
    assert version(newer) != version(first)


def test_the_library_layer_has_byte_code_of_every_module(monkeypatch, tmp_path):
    from aws_cdk import App, Stack  # noqa: PLC0415

    from shardfleet_cdk import bundling, byte_code, layers  # noqa: PLC0415
    from shardfleet_cdk.lambda_platform import lambda_platform  # noqa: PLC0415

    for module in (bundling, byte_code):  # This Python stands for Lambda's.
        monkeypatch.setattr(module, "interpreter", lambda _: sys.executable)
    monkeypatch.setattr(bundling, "install", lambda _, target, *__, **___: target.mkdir())
    app = App(outdir=str(tmp_path / "out"))
    layers.FleetLayers(Stack(app, "Stack"), "Layers", platform=lambda_platform())
    app.synth()

    (library,) = (tmp_path / "out").glob("asset.*/python/shardfleet")
    found = {path.relative_to(library) for path in library.rglob("*") if path.is_file()}
    modules = {path for path in found if path.suffix == ".py"}
    made = {path for path in found if path.suffix == ".pyc"}
    tag = sys.implementation.cache_tag
    assert made == {path.parent / f"__pycache__/{path.stem}.{tag}.pyc" for path in modules}
    assert found - modules - made == {Path("py.typed")}
    whole = ROOT / "layer/python/shardfleet"
    assert modules == {path.relative_to(whole) for path in whole.rglob("*.py")}


def test_a_library_without_byte_code_is_another_asset(template, monkeypatch):
    from shardfleet_cdk import bundling  # noqa: PLC0415

    monkeypatch.setattr(bundling, "interpreter", lambda _: None)
    plain, _ = template()
    monkeypatch.setattr(bundling, "interpreter", lambda _: "/usr/bin/python3.14")
    compiled, _ = template()
    assert not keys(plain) & keys(compiled)


def test_the_repositorys_stack_is_told_by_its_context(tmp_path):
    from shardfleet_cdk import synthesis  # noqa: PLC0415

    context = {"shardfleet:architecture": "x86_64", "shardfleet:runtime": "python3.12"}
    file = synthesis.synthesize(tmp_path, context=context)
    functions = of_type(json.loads(file.read_text("utf-8")), "AWS::Lambda::Function").values()
    assert {(f["Runtime"], *f["Architectures"]) for f in functions} == {("python3.12", "x86_64")}
