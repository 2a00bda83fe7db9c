"""
An app that is not the repository's own: README's blocks as they stand, then a second fleet.

The commands are given the stack's name and nothing else, as a person who pasted those lines would.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardfleet_local.aws.deploy import deploy
from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_ops.cli import app as application
from tests.end_to_end.cloud import wait_until
from tests.test_readme import WITHOUT_BUNDLING, blocks, paste_files

pytestmark = pytest.mark.processes

SHARDS = 4
DEADLINE_S = 90
SECOND = 'ShardFleet(stack, "Orders", stream=stream, handler=HandlerCode(folder="handler"))'
READERS = (
    ["status"],
    ["leases"],
    ["top", "--rounds", "1"],
    ["explain"],
    ["what-if"],
    ["where", "--key", "ada"],
    ["cost"],
    ["logs", "--since", "1m"],
    ["position", "export"],
    ["resume"],
    ["pause", "--all", "--dry-run"],
    ["drain", "--dry-run"],
    ["release", "s0001", "--dry-run"],
    ["rewind", "--all", "--to", "1h", "--dry-run"],
    ["migrate", "--to-java", "--dry-run"],
    ["doctor"],
)


class Shop:
    """The folder that the README fills, and an embedded AWS for what is deployed from it."""

    def __init__(self, aws, top):
        self.aws, self.folder = aws, top / "build/shop"
        self.paste("mkdir", folder=top)
        paste_files(self.folder)

    def paste(self, begins, *, folder=None, environment=None):
        """Run a block of the README as it stands, and return what it prints."""
        (block,) = [block for block in blocks("sh") if block.startswith(begins)]
        programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        ran = subprocess.run(
            ["bash", "-ec", block],
            cwd=folder or self.folder,
            env=os.environ | {"PATH": programs} | (environment or {}),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S * 3,
            check=False,
        )
        assert ran.returncode == 0, (block, ran.stdout, ran.stderr)
        return ran.stdout + ran.stderr

    def deploy(self, file):
        out = self.folder / f"cdk-{file}"
        environment = os.environ | {"CDK_OUTDIR": str(out), "CDK_CONTEXT_JSON": WITHOUT_BUNDLING}
        subprocess.run([sys.executable, file], cwd=self.folder, env=environment, check=True)
        return deploy(out, "Clicks", self.aws)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    with EmbeddedAws() as aws:
        yield Shop(aws, tmp_path_factory.mktemp("any-app"))


@pytest.fixture
def ask(shop, monkeypatch, capsys):
    for name, value in shop.aws.environment().items():
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


def test_readmes_handler_gets_readmes_records_on_this_machine(shop):
    told = shop.paste("shardfleet local run")

    assert "300 of 300 records handled" in told
    assert "v1 sees /1, view 1" in told


def test_every_command_sees_the_fleet_of_readmes_ten_lines(shop, ask):
    shop.deploy("app.py")
    see_all_shards_read(ask)

    told = shop.paste("export SHARDFLEET_STACK", environment=shop.aws.environment())

    assert "300 records sent" in told
    for command in READERS:
        code, said = ask(*command)
        assert code == 0, (command, said)
    code, said = ask("doctor", "--json")
    assert (code, json.loads(said.out)) == (0, [])


def test_two_fleets_of_one_stack_are_told_apart_by_name(shop, ask):
    one = (shop.folder / "app.py").read_text("utf-8")
    two = one.replace("app.synth()", f"{SECOND}\napp.synth()")
    (shop.folder / "two.py").write_text(two, "utf-8")
    shop.deploy("two.py")

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
