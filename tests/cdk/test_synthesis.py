"""The template is the same whoever synthesizes it, wherever, and cdk-nag finds nothing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardfleet.errors import ConfigurationError
from shardfleet_local.aws.deploy import deploy
from shardfleet_local.aws.launcher import EmbeddedAws
from tests.cdk.templates import of_type, only, rights, spelled

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = "ShardFleetStack.template.json"
OUTPUTS = {
    "StreamName": "<Stream",
    "StreamArn": "<Stream",
    "LeaseTable": "<FleetLeases",
    "StateTable": "<FleetState",
    "ManagerFunction": "<FleetManagerFunction",
    "WorkerFunction": "<FleetWorkerFunction",
    "StateMachineArn": "<FleetSlotsMachine",
}


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """A copy of what is deployed, as a fresh clone has it, plus what an interpreter leaves."""
    root = tmp_path_factory.mktemp("clone")
    for folder in ("cdk", "functions", "layer", "spark", "tools"):
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(ROOT / folder, root / folder, ignore=ignored)
    for file in ("cdk.json", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, root)
    for folder in ("functions/handler", "layer/python/shardfleet/domain"):
        (root / folder / "__pycache__").mkdir()
        (root / folder / "__pycache__/left.cpython-311.pyc").write_bytes(b"left over")
    return root


@pytest.fixture(scope="session")
def synthesized_by_program(project):
    """`python cdk/app.py` in the copy: cdk-nag judges, bundling is left out."""
    environment = {
        **os.environ,
        "CDK_OUTDIR": "cdk.out",
        "CDK_CONTEXT_JSON": '{"aws:cdk:bundling-stacks": []}',
        "PYTHONPATH": os.pathsep.join(
            str(project / folder) for folder in ("layer/python", "cdk", "tools")
        ),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    run = subprocess.run(
        [sys.executable, "cdk/app.py"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return project / "cdk.out"


@pytest.fixture(scope="session")
def bundled(project, tmp_path_factory):
    """The copy's template, from this process, in another folder, bundled."""
    # Imported here, because it starts Node, which collecting the tests shall not.
    from shardfleet_cdk import bundling, synthesis  # noqa: PLC0415

    outdir = tmp_path_factory.mktemp("bundled")
    with pytest.MonkeyPatch.context() as patch:
        # A stand-in for uv, which would need a package index.
        patch.setattr(
            bundling,
            "install",
            lambda _, target, *__, **___: (target.mkdir(), (target / "installed.py").touch()),
        )
        patch.setattr("shardfleet_cdk.assets._REPOSITORY", project)
        synthesis.synthesize(outdir, project=project, bundle=True)
    return outdir


@pytest.fixture(scope="session")
def template(synthesized_by_program):
    return json.loads((synthesized_by_program / TEMPLATE).read_text("utf-8"))


def test_the_template_is_the_same_from_another_place_with_and_without_bundling(
    synthesized_by_program, bundled
):
    first = (synthesized_by_program / TEMPLATE).read_bytes()
    second = (bundled / TEMPLATE).read_bytes()

    assert first == second


def test_an_installed_wheel_synthesizes_the_same_template(
    synthesized_by_program, project, tmp_path
):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=project, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    shutil.unpack_archive(wheel, installed, "zip")
    program = (
        "import pathlib, shardfleet_cdk.synthesis as synthesis;"
        f"assert synthesis.__file__.startswith({str(installed)!r});"
        "synthesis.synthesize(pathlib.Path('out'))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    first = (synthesized_by_program / TEMPLATE).read_bytes()
    assert (tmp_path / "out" / TEMPLATE).read_bytes() == first


@pytest.mark.processes
def test_the_deployed_template_is_the_one_make_synth_writes_in_a_clean_directory(
    synthesized_by_program, tmp_path
):
    from shardfleet_cdk.synthesis import STACK_NAME, synthesize  # noqa: PLC0415 - it starts Node.

    assert "CDK_OUTDIR=cdk.out $(BIN)/python cdk/app.py" in (ROOT / "Makefile").read_text("utf-8")
    here = synthesize(tmp_path).read_text("utf-8")
    with EmbeddedAws(enforce_iam=True) as aws:
        deploy(tmp_path, STACK_NAME, aws)
        deployed = aws.client("cloudformation").get_template(StackName=STACK_NAME)["TemplateBody"]

    written = (synthesized_by_program / TEMPLATE).read_text("utf-8")
    assert written == here
    assert deployed == json.loads(written)


def test_bundling_installs_into_the_layer_and_nowhere_else(bundled):
    (installed,) = bundled.rglob("installed.py")

    assert installed.parent.name == "python"


def test_the_template_names_no_place_of_this_machine(synthesized_by_program, project):
    text = (synthesized_by_program / TEMPLATE).read_text("utf-8")

    assert str(ROOT) not in text
    assert str(project) not in text


def test_the_library_layer_holds_what_runs_in_lambda_and_nothing_else(
    synthesized_by_program, project
):
    (library,) = synthesized_by_program.glob("asset.*/python/shardfleet")
    whole = project / "layer/python/shardfleet"
    expected = {str(path.relative_to(whole)) for path in whole.rglob("*.py")}

    staged = {str(path.relative_to(library)) for path in library.rglob("*") if path.is_file()}
    assert staged == expected | {"py.typed"}
    assert [path.name for path in library.parent.parent.iterdir()] == ["python"]


def test_the_handlers_folder_is_the_workers_asset(synthesized_by_program):
    staged = {
        tuple(sorted(path.name for path in asset.iterdir()))
        for asset in synthesized_by_program.glob("asset.*")
    }

    assert ("handler.py", "requirements.txt") in staged


def test_cdk_nag_finds_nothing_in_the_repositorys_stack(synthesized_by_program):
    report = synthesized_by_program / "validation-report.json"

    assert violations(report) == []


def test_the_cdks_own_rules_find_nothing_in_the_repositorys_stack(tmp_path):
    from shardfleet_cdk.synthesis import NO_BUNDLING, build_app  # noqa: PLC0415
    from tests.cdk.variants import judge  # noqa: PLC0415

    app = build_app(outdir=tmp_path, context=NO_BUNDLING)
    judge(app)
    app.synth()

    assert violations(tmp_path / "validation-report.json") == []


def test_cdk_nag_and_the_cdks_own_rules_find_nothing_in_any_variant(assembly):
    assert violations(assembly / "validation-report.json") == []


def test_cdk_nag_and_the_cdks_own_rules_are_listening(tmp_path):
    from aws_cdk import App, CfnResource, Stack  # noqa: PLC0415
    from aws_cdk import aws_sqs as sqs  # noqa: PLC0415

    from shardfleet_cdk.synthesis import project_context  # noqa: PLC0415
    from tests.cdk.variants import judge  # noqa: PLC0415

    app = App(outdir=str(tmp_path), context=project_context())
    stack = Stack(app, "Careless")
    sqs.Queue(stack, "Open")
    CfnResource(stack, "Soon", type="AWS::SQS::Queue", properties={"DelaySeconds": "soon"})
    judge(app)

    with pytest.raises(RuntimeError, match="ValidationFailed"):
        app.synth()
    found = violations(tmp_path / "validation-report.json")
    assert {"AwsSolutions-SQS4", "F3012"} <= set(found)


def violations(report):
    plugins = json.loads(report.read_text("utf-8"))["pluginReports"]
    return [violation["ruleName"] for plugin in plugins for violation in plugin["violations"]]


def test_the_outputs_say_what_was_made(template):
    for name, prefix in OUTPUTS.items():
        assert spelled(template["Outputs"][name]["Value"]).startswith(prefix), name


def test_the_repositorys_stack_is_what_cdk_json_says(template):
    context = json.loads((ROOT / "cdk.json").read_text("utf-8"))["context"]
    stream = only(template, "AWS::Kinesis::Stream")
    functions = of_type(template, "AWS::Lambda::Function").values()
    worker = next(f for f in functions if f["Handler"].endswith("worker_handler"))

    assert stream["ShardCount"] == context["shardfleet:stream"]["shards"]
    assert worker["MemorySize"] == context["shardfleet:worker"]["memory_mb"]
    for name, value in context["shardfleet:config"].items():
        assert worker["Environment"]["Variables"][f"SHARDFLEET_{name.upper()}"] == str(value)


def test_every_feature_flag_of_the_libraries_version_is_set():
    context = json.loads((ROOT / "cdk.json").read_text("utf-8"))["context"]
    important = (
        "@aws-cdk/aws-iam:minimizePolicies",
        "@aws-cdk/aws-lambda:recognizeLayerVersion",
        "@aws-cdk/aws-lambda:useCdkManagedLogGroup",
        "@aws-cdk/core:annotationsInValidationReport",
        "@aws-cdk/core:validateAgainstDefaultRules",
    )

    assert all(context[flag] is True for flag in important)


ARN = "arn:aws:kinesis:eu-central-1:999999999999:stream/orders"
KEY = "arn:aws:kms:eu-central-1:999999999999:key/1f2e3d4c-0000-1111-2222-333344445555"


@pytest.fixture
def stack_with():
    from aws_cdk import App  # noqa: PLC0415

    from shardfleet_cdk.stack import ShardFleetStack  # noqa: PLC0415
    from shardfleet_cdk.synthesis import NO_BUNDLING  # noqa: PLC0415

    def make(**settings):
        given = {f"shardfleet:{name}": value for name, value in settings.items()}
        app = App(context=given | NO_BUNDLING)
        return ShardFleetStack(app, "Stack", project=ROOT)

    return make


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stream": "clicks"}, "shardfleet:stream: 'clicks' found (no ARN), arn:"),
        ({"stream": {"shards": 0}}, "shardfleet:stream: {'shards': 0} found, {\"shards\": n}"),
        ({"stream": {"shard": 2}}, "shardfleet:stream: {'shard': 2} found, {\"shards\": n}"),
        ({}, "shardfleet:stream: None found, expected: the stream"),
        ({"config": 3}, "shardfleet:config: 3 found, expected: fields of FleetConfig"),
        ({"config": "{shards"}, "shardfleet:config: no JSON"),
        ({"removal": "keep"}, "shardfleet:removal: 'keep' found, one of retain, destroy allowed"),
        ({"architecture": "arm"}, "shardfleet:architecture: 'arm' found, one of arm64, x86_64"),
        ({"reading": "pushed"}, "shardfleet:reading: 'pushed' found (no ARN), arn:"),
        ({"runtime": "3.14"}, "shardfleet:runtime: '3.14' found, one of python3.12, python3.13"),
        ({"worker": {"memory": 1}}, "shardfleet:worker: 'memory' found, one of memory_mb"),
        ({"stream_key": "alias/mine"}, "stream_key: 'alias/mine' found (no ARN), arn:"),
        ({"lease_table_key": KEY}, "allowed only with an existing one (shardfleet:lease_table)"),
        (
            {"stream": {"shards": 1}, "stream_key": KEY},
            "allowed only with an existing one (shardfleet:stream)",
        ),
        ({"handler": "functions/none"}, "functions/none': no such folder"),
        ({"function": "handler:collect"}, "handler.py defines no collect"),
    ],
)
def test_a_wrong_setting_is_named(stack_with, settings, message):
    given = settings if "stream" in settings or not settings else {**settings, "stream": ARN}

    with pytest.raises(ConfigurationError) as refused:
        stack_with(**given)
    assert message in str(refused.value)


def test_the_command_line_gives_objects_as_text(stack_with):
    stack = stack_with(stream='{"shards": 2}', config='{"leases_per_worker": 5}')

    assert stack.fleet.config.leases_per_worker == 5


def test_an_existing_stream_and_lease_table_are_named_in_the_context(stack_with):
    stack = stack_with(stream=ARN, lease_table="kcl-application")

    assert stack.fleet.config.stream_arn == ARN
    assert stack.fleet.config.lease_table == "kcl-application"


def test_the_stack_reads_as_its_context_says(stack_with):
    def consumer(**settings):
        return stack_with(stream=ARN, **settings).fleet.config.consumer_arn

    existing = f"{ARN}/consumer/billing:1700000000"
    assert consumer() == ""
    assert consumer(reading=existing) == existing
    assert consumer(reading="fan-out").startswith("${Token[")


def test_the_keys_of_an_existing_stream_and_lease_table_are_named_in_the_context(stack_with):
    from aws_cdk.assertions import Template  # noqa: PLC0415 - it starts Node.

    tables_key = KEY.replace("1f2e", "aaaa")
    stack = stack_with(
        stream=ARN, stream_key=KEY, lease_table="kcl-application", lease_table_key=tables_key
    )
    template = Template.from_stack(stack).to_json()
    for role in ("FleetWorkerRole", "FleetManagerRole"):
        (name,) = of_type(template, "AWS::IAM::Role", inside=role)
        found = rights(template, name)
        assert f"kms:Decrypt on {KEY}" in found
        through = {each for each in found if each.startswith(f"kms:Decrypt on {tables_key} if")}
        assert "dynamodb.<AWS::Region>" in "".join(through)
