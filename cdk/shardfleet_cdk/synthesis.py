"""
The app and its synthesis: the same template from the CDK's command line, `make synth` and tests.

The CDK reads `cdk.json` only through its command line; here it is read without, so that feature
flags and settings never depend on who synthesizes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aws_cdk import App, Validations
from aws_cdk.cx_api import CloudAssembly
from cdk_nag import AwsSolutionsChecks, ServerlessChecks

from shardfleet_cdk.assets import asset_root
from shardfleet_cdk.stack import ShardFleetStack

STACK_NAME = "ShardFleetStack"
_NOTES = {"aws:cdk:info": "info", "aws:cdk:warning": "warning", "aws:cdk:error": "error"}
NO_BUNDLING: dict[str, Any] = {"aws:cdk:bundling-stacks": []}


def project_context(project: Path | None = None) -> dict[str, Any]:
    """
    Return the context of `cdk.json`: feature flags and the stack's settings.

    Args:
        project: the folder of `cdk.json` (default: shardfleet's own).

    """
    file = (project or asset_root()) / "cdk.json"
    context: dict[str, Any] = json.loads(file.read_text("utf-8"))["context"]
    return context


def build_app(
    *,
    outdir: Path | None = None,
    context: Mapping[str, Any] | None = None,
    project: Path | None = None,
) -> App:
    """
    Return the app with the repository's stack, not yet synthesized.

    Args:
        outdir: the cloud assembly's folder (default: where the CDK's command line wants it).
        context: overrides of what `cdk.json` says, key by key.
        project: the folder that relative paths start from (default: shardfleet's own).

    Raises:
        ConfigurationError: a setting is wrong.

    """
    root = project or asset_root()
    own = project_context(root if (root / "cdk.json").exists() else None)
    app = App(
        outdir=str(outdir) if outdir else None,
        context={**own, **(context or {})},
        analytics_reporting=False,
    )
    ShardFleetStack(app, STACK_NAME, project=root)
    return app


def synthesize(
    outdir: Path,
    *,
    context: Mapping[str, Any] | None = None,
    project: Path | None = None,
    bundle: bool = False,
) -> Path:
    """
    Write the cloud assembly and return the path of the stack's template.

    Args:
        outdir: the folder to write; the assets are listed in `<stack>.assets.json` beside the
            template, with paths relative to it.
        context: overrides of `cdk.json`, e.g. ``{"shardfleet:stream": {"shards": 2}}``.
        project: the folder that relative paths start from (default: shardfleet's own).
        bundle: whether third-party packages are installed into their assets, which needs uv
            and a package index. The template is the same either way.

    Raises:
        ConfigurationError: a setting is wrong.

    """
    app = build_app(
        outdir=outdir,
        context={**(context or {}), **({} if bundle else NO_BUNDLING)},
        project=project,
    )
    app.synth()
    return outdir / f"{STACK_NAME}.template.json"


def notes_of(assembly: CloudAssembly) -> list[str]:
    """Return what constructs have to say, as the CDK's command line would print it."""
    # From the files: jsii does not know the type that its own `stack.messages` are of.
    folder = Path(assembly.directory)
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    notes = []
    for artifact in manifest["artifacts"].values():
        metadata = dict(artifact.get("metadata", {}))
        if "additionalMetadataFile" in artifact:
            metadata |= json.loads((folder / artifact["additionalMetadataFile"]).read_text("utf-8"))
        notes += [
            f"{_NOTES[entry['type']]}: {entry['data']}"
            for entries in metadata.values()
            for entry in entries
            if entry["type"] in _NOTES
        ]
    return notes


def add_checks(app: App) -> None:
    """Let cdk-nag judge the app: a finding that nobody acknowledged fails the synthesis."""
    Validations.of(app).add_plugins(AwsSolutionsChecks(app), ServerlessChecks(app))
