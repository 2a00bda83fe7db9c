"""
New code into a fleet that runs, as soon as a file of its handler has changed.

It comes as a deployment brings it: a new version of the worker function, to which its alias
moves. A turn that runs ends with the code it began with, but is told to end now (SIGTERM, see
`shardfleet.runtime.entry_points.worker_handler`): nothing is handed over and no record comes twice.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from botocore.exceptions import ClientError

from shardfleet.errors import ConfigurationError
from shardfleet_local.aws.deploy import StackOutputs, stack_of, zip_folder
from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.own.own_code import code_files, staged

METADATA = "shardfleet:handler"
"""Under which a worker's construct says in the assembly where its code was taken from."""

ALIAS = "live"
"""Of a worker function, which the state machine invokes."""

AGAIN_S, AGAIN_S_MOST = 3.0, 60.0  # ours
"""How long after a refusal the same code is tried again, and at most: each time twice as long."""

Stamps = Mapping[Path, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedHandler:
    """
    Where a worker function's code was taken from.

    Attributes:
        logical_id: of the function, in its template.
        folder: of the user's code.
        function: `module:function` inside it.

    """

    logical_id: str
    folder: Path
    function: str


def deployed_handlers(assembly: Path, *, folder: Path | None = None) -> list[DeployedHandler]:
    """
    Return the handlers of an assembly's only stack, as its constructs have noted them.

    Args:
        assembly: what was synthesized.
        folder: where the code really lies, if it was copied for the synthesis.

    """
    manifest = json.loads((assembly / "manifest.json").read_text("utf-8"))
    stack = manifest["artifacts"][stack_of(assembly)]
    noted = dict(stack.get("metadata", {}))
    if "additionalMetadataFile" in stack:
        noted |= json.loads((assembly / stack["additionalMetadataFile"]).read_text("utf-8"))
    found = []
    for entries in noted.values():
        data = {entry["type"]: entry.get("data") for entry in entries}
        if METADATA in data:
            own = data[METADATA]
            found.append(
                DeployedHandler(
                    logical_id=data["aws:cdk:logicalId"],
                    folder=folder or Path(own["folder"]),
                    function=own["function"],
                )
            )
    return found


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why code was not taken, when it is tried again, by the clock, and how long that is."""

    why: str
    again_s: float
    wait_s: float


class Reloader:
    """
    Looks at handlers' folders, and replaces the code of those that have changed.

    What was refused is tried again, for it may be that something else was missing: a package, a
    variable's value in a file, an answer of AWS. The same refusal is told once.

    Args:
        aws: where the stack runs.
        handlers: whose folders are looked at, where they are there.
        say: told of each reload, and why there was none.
        clock: seconds that never go back.

    """

    def __init__(
        self,
        aws: EmbeddedAws,
        handlers: Sequence[DeployedHandler],
        *,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._aws = aws
        self._say = say
        self._clock = clock
        self._refusals: dict[DeployedHandler, _Refusal] = {}
        self._seen = {each: _stamps(each.folder) for each in handlers if each.folder.is_dir()}

    def look(self, stack: StackOutputs) -> None:
        """Look once; code that cannot be imported is not taken, and the code before goes on."""
        for handler, seen in self._seen.items():
            # A file that goes while it is looked at: the next look finds what there is then.
            with suppress(OSError):
                now = _stamps(handler.folder)
                if now != seen:
                    self._refusals.pop(handler, None)
                elif not self._is_due(handler):
                    continue
                self._reload(handler, stack.resources[handler.logical_id])
                self._seen[handler] = now

    def _is_due(self, handler: DeployedHandler) -> bool:
        refusal = self._refusals.get(handler)
        return refusal is not None and self._clock() >= refusal.again_s

    def _refuse(self, handler: DeployedHandler, why: str) -> None:
        before = self._refusals.get(handler)
        wait_s = min(2 * before.wait_s, AGAIN_S_MOST) if before else AGAIN_S
        self._refusals[handler] = _Refusal(why, self._clock() + wait_s, wait_s)
        if before is None or before.why != why:
            self._say(f"not reloaded, the code before goes on: {why}")

    def _reload(self, handler: DeployedHandler, name: str) -> None:
        client = self._aws.client("lambda")
        found = client.get_function_configuration(FunctionName=name)
        own = found.get("Environment", {}).get("Variables", {})
        variables = {**self._aws.environment(), **own}
        try:
            with tempfile.TemporaryDirectory(prefix="shardfleet-") as work:
                code = staged(
                    handler.folder,
                    handler.function,
                    target=Path(work) / "code",
                    variables=variables,
                )
                published = client.update_function_code(
                    FunctionName=name, ZipFile=zip_folder(code), Publish=True
                )
            version = published["Version"]
            client.update_alias(FunctionName=name, Name=ALIAS, FunctionVersion=version)
        except (ConfigurationError, ClientError) as error:
            self._refuse(handler, str(error))
            return
        self._refusals.pop(handler, None)
        for process in self._aws.worker_processes(name):
            if process.busy and process.version != version:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGTERM)
        self._say(f"reloaded {handler.function}: the next batch is handled by the new code")


def _stamps(folder: Path) -> Stamps:
    """Return what changes with each file: when it was written, and its size."""
    return {
        path: (found.st_mtime_ns, found.st_size)
        for path in code_files(folder)
        for found in [path.stat()]
    }
