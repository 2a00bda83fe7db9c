"""
An app that is not the repository's own: README's ten lines as they stand, then with a second fleet.

The commands are given the stack's name and nothing else, as a person who pasted those lines would.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardfleet.cli import app as application
from shardfleet.local.aws.deploy import deploy
from shardfleet.local.aws.launcher import EmbeddedAws
from tests.end_to_end.cloud import wait_until
from tests.test_readme import WITHOUT_BUNDLING, block_with

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
SHARDS = 4
DEADLINE_S = 90
SECOND = (
    'ShardFleet(stack, "Orders", stream=stream, handler=HandlerCode(folder="functions/handler"))'
)
READERS = (
    ["status"],
    ["leases"],
    ["top", "--rounds", "1"],
    ["explain"],
    ["what-if"],
    ["where", "--key", "ada"],
    ["cost"],
    ["position", "export"],
    ["resume"],
    ["pause", "--all", "--dry-run"],
    ["drain", "--dry-run"],
    ["release", "s0001", "--dry-run"],
    ["rewind", "--all", "--to", "1h", "--dry-run"],
    ["doctor"],
)


class Account:
    """One embedded AWS, and an app that is deployed to it again and again."""

    def __init__(self, aws, folder):
        self.aws, self.folder = aws, folder

    def deploy(self, source, number):
        out = self.folder / f"cdk-{number}"
        environment = os.environ | {"CDK_OUTDIR": str(out), "CDK_CONTEXT_JSON": WITHOUT_BUNDLING}
        subprocess.run([sys.executable, "-c", source], cwd=ROOT, env=environment, check=True)
        return deploy(out, "Clicks", self.aws)


@pytest.fixture(scope="module")
def account(tmp_path_factory):
    with EmbeddedAws() as aws:
        yield Account(aws, tmp_path_factory.mktemp("any-app"))


@pytest.fixture
def ask(account, monkeypatch, capsys):
    for name, value in account.aws.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SHARDFLEET_STACK", "Clicks")

    def run(*arguments):
        code = application.run(list(arguments))
        return code, capsys.readouterr()

    return run


def see_all_shards_read(ask, *options):
    def states():
        code, said = ask("leases", "--json", *options)
        assert code == 0, said.err
        return [row["state"] for row in json.loads(said.out)] == ["READING"] * SHARDS

    wait_until(states, what=f"{SHARDS} shards read {options}", within_s=DEADLINE_S)


def test_every_command_sees_the_fleet_of_readmes_ten_lines(account, ask):
    account.deploy(block_with("app.synth()"), 1)

    see_all_shards_read(ask)

    for command in READERS:
        code, said = ask(*command)
        assert code == 0, (command, said)
    code, said = ask("doctor", "--json")
    assert (code, json.loads(said.out)) == (0, [])


def test_two_fleets_of_one_stack_are_told_apart_by_name(account, ask):
    one = block_with("app.synth()")
    account.deploy(one.replace("app.synth()", f"{SECOND}\napp.synth()"), 2)

    code, said = ask("status")
    assert code == application.EXIT_WRONG_INPUT
    assert "it has 2 fleets, say which with --fleet: clicks, clicks-orders" in said.err

    for name in ("clicks", "clicks-orders"):
        see_all_shards_read(ask, "--fleet", name)
        for command in READERS:
            code, said = ask(*command, "--fleet", name)
            assert code == 0, (command, name, said)
        _, said = ask("leases", "--json", "--fleet", name)
        owners = {row["owner"] for row in json.loads(said.out)}
        assert all(owner.rpartition("-")[0] == name for owner in owners), owners
