"""
The user's handler: a folder that becomes the worker function's asset as it is.

The worker's Lambda entry point lies in the library layer and imports the user's function by name
(``SHARDFLEET_HANDLER``), so nothing is copied beside the user's code.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from shardfleet.domain.delivery.contract import check_written
from shardfleet.domain.delivery.hooks import check_class_written
from shardfleet.errors import ConfigurationError
from shardfleet_cdk.assets import CACHES
from shardfleet_cdk.bundling import package_code, requirement_lines, warn_of_unpinned
from shardfleet_cdk.lambda_platform import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerCode:
    """
    Where the user's function is and how it is called.

    Attributes:
        folder: the user's code; its `requirements.txt`, if any, is installed beside it at synth.
        function: ``module:function`` inside the folder, or ``module:Class``.
        contract: ``native`` (``handle(batch)``), ``event`` (``handler(event, context)``, the
            event source mapping's) or ``auto``: by what the function can be called with.

    Raises:
        ConfigurationError: no such folder, module or function, or a worker could not call it.

    """

    folder: str | Path
    function: str = "handler:handle"
    contract: str = "auto"

    def __post_init__(self) -> None:
        """Look for the function without importing it: its packages may not be here."""
        folder = Path(self.folder)
        if not folder.is_dir():
            message = f"handler folder {str(self.folder)!r}: no such folder (from {Path.cwd()})"
            raise ConfigurationError(message)
        module, colon, name = self.function.partition(":")
        if not (colon and module and name):
            message = f"handler function {self.function!r}: 'module:function' expected"
            raise ConfigurationError(message)
        path = folder / Path(*module.split("."))
        candidates = (path.with_suffix(".py"), path / "__init__.py")
        file = next((file for file in candidates if file.is_file()), None)
        if file is None:
            message = f"handler function {self.function!r}: no module {module} in {self.folder}"
            raise ConfigurationError(message)
        found = _top_level(file)
        if name not in found:
            message = f"handler function {self.function!r}: {file} defines no {name}"
            raise ConfigurationError(message)
        if isinstance(node := found[name], ast.FunctionDef | ast.AsyncFunctionDef):
            where = f"{file}, line {node.lineno}"
            check_written(node, self.contract, name=self.function, where=where)
        if isinstance(node, ast.ClassDef):
            where = f"{file}, line {node.lineno}"
            check_class_written(node, self.contract, name=self.function, where=where)

    def code(self, scope: Construct, platform: Platform) -> lambda_.Code:
        """
        Return the worker function's asset: the folder, with its requirements if it has any.

        Args:
            scope: is warned of requirements that are not pinned.
            platform: what the requirements are to run on.

        """
        folder = Path(self.folder)
        warn_of_unpinned(scope, folder)
        if requirement_lines(folder):
            return package_code(folder, platform=platform, copy=True)
        return lambda_.Code.from_asset(str(folder), exclude=list(CACHES))

    def note_at(self, function: lambda_.Function) -> None:
        """Note in the assembly where the code is: `shardfleet local up` looks there for edits."""
        source = {"folder": str(Path(self.folder).resolve()), "function": self.function}
        function.node.find_child("Resource").node.add_metadata("shardfleet:handler", source)


def _top_level(file: Path) -> dict[str, ast.stmt]:
    """Return what a module defines, by name: the last definition of each."""
    try:
        body = ast.parse(file.read_text("utf-8"), filename=str(file)).body
    except SyntaxError as error:
        message = f"handler {file}: line {error.lineno}: {error.msg}"
        raise ConfigurationError(message) from error
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [(alias.asname or alias.name).split(".")[0] for alias in node.names]
            found |= dict.fromkeys(names, node)
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            found |= dict.fromkeys(names, node)
    return found
