"""Options of a construct are typed: of what names and what values, and that mypy refuses others."""

import subprocess
import sys
from typing import Literal, get_type_hints

import pytest

from shardfleet.config import DeployedConfig, ExpertConfig, FleetConfig, OneOf
from shardfleet.config import options as configuration_options
from tests.test_readme import blocks
from tests.test_tidy import ROOT

SETTINGS = f"""
[mypy]
strict = true
python_version = 3.11
mypy_path = {ROOT / "layer/python"}:{ROOT / "cdk"}:{ROOT / "tools"}
follow_imports = silent
[mypy-aws_cdk.*,constructs.*,jsii.*]
follow_imports = skip
ignore_missing_imports = true
[mypy-handler.*]
ignore_missing_imports = true
"""
BEFORE = """
from aws_cdk import Stack
from aws_cdk import aws_kinesis as kinesis
from shardfleet_cdk import ExpertOptions, FleetOptions, HandlerCode, ShardFleet

def fleet(stack: Stack, stream: kinesis.Stream, handler: HandlerCode) -> None:
    ShardFleet(stack, "Fleet", stream=stream, handler=handler, {})
"""
GOOD = [
    'config={"parallelism": 4, "on_exhausted": "sqs", "sleep": True}',
    'experts={"cycle_ms": 30_000, "stream_calls": "boto3"}',
    'config=FleetOptions(max_attempts=3), experts=ExpertOptions(io_threads=4), name="shop"',
]
BAD = {
    'config={"paralelism": 4}': 'Extra key "paralelism" for TypedDict "FleetOptions"',
    'config={"on_exhausted": "mq"}': 'TypedDict item "on_exhausted" has type "Literal[',
    'config={"max_attempts": "3"}': 'TypedDict item "max_attempts" has type "int"',
    'config={"cycle_ms": 30_000}': 'Extra key "cycle_ms" for TypedDict "FleetOptions"',
    'config={"stream_arn": "arn"}': 'Extra key "stream_arn" for TypedDict "FleetOptions"',
    'experts={"max_attempts": 3}': 'Extra key "max_attempts" for TypedDict "ExpertOptions"',
}


def options():
    from shardfleet_cdk import ExpertOptions, FleetOptions  # noqa: PLC0415 - Node starts with it

    return FleetOptions, ExpertOptions


def test_typed_options_are_the_configurations_fields_but_for_what_the_construct_sets():
    from shardfleet_cdk.fleet_config import SET_BY_THE_CONSTRUCT  # noqa: PLC0415

    users, experts = options()

    assert list(users.__annotations__) == list(FleetConfig.__annotations__)
    assert list(experts.__annotations__) == list(ExpertConfig.__annotations__)
    assert SET_BY_THE_CONSTRUCT.keys() == DeployedConfig.__annotations__.keys()


@pytest.mark.parametrize("of", [0, 1], ids=["users", "experts"])
def test_a_typed_option_has_the_configurations_kind_and_choices(of):
    by_name = {each.name: each for each in configuration_options()}
    hints = get_type_hints(options()[of])
    expected = {
        name: Literal[tuple(by_name[name].allowed.words)]
        if isinstance(by_name[name].allowed, OneOf)
        else by_name[name].kind
        for name in hints
    }

    assert hints == expected


@pytest.fixture(scope="module")
def complaints(tmp_path_factory):
    """Return what mypy says of each app, by its arguments: one run for all."""
    folder = tmp_path_factory.mktemp("apps")
    apps = {f"app_{n}.py": text for n, text in enumerate([*GOOD, *BAD])}
    for name, text in apps.items():
        (folder / name).write_text(BEFORE.format(text), "utf-8")
    (readme,) = [text for text in blocks("python") if "app.synth()" in text]
    (folder / "readme.py").write_text(readme, "utf-8")
    (folder / "mypy.ini").write_text(SETTINGS, "utf-8")
    command = [sys.executable, "-m", "mypy", "--cache-dir=.cache", *apps, "readme.py"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert not run.stderr, run.stderr
    of = {text: [] for text in (*apps.values(), "readme")}
    for line in run.stdout.splitlines()[:-1]:
        of[apps.get(line.split(":")[0], "readme")].append(line)
    return of


@pytest.mark.parametrize("app", [*GOOD, "readme"])
def test_mypy_takes_a_good_app(complaints, app):
    assert complaints[app] == []


@pytest.mark.parametrize("app", BAD)
def test_mypy_refuses_a_wrong_option_by_its_name(complaints, app):
    assert any(BAD[app] in line for line in complaints[app]), complaints[app]
