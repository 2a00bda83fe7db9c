"""
The repository's stack as `shardfleet acceptance` deploys it: its own name, its own bucket.

The bucket takes the assets and what the handler has noted, and is no part of the stack: so an
account need not be bootstrapped for the CDK, and nothing of its bootstrap is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aws_cdk import App, DefaultStackSynthesizer
from aws_cdk import aws_s3 as s3

from shardfleet_cdk.assets import asset_root
from shardfleet_cdk.stack import ShardFleetStack
from shardfleet_cdk.synthesis import NO_BUNDLING, project_context


def synthesize_acceptance(
    outdir: Path,
    *,
    name: str,
    bucket: str,
    writes: Sequence[str],
    context: Mapping[str, Any],
    bundle: bool,
) -> Path:
    """
    Write the cloud assembly and return its folder.

    Args:
        outdir: the folder to write.
        name: of the stack.
        bucket: an existing bucket, for the assets; the worker may put objects there, too.
        writes: where the worker may: patterns of keys.
        context: as in `cdk.json`, whose settings it replaces.
        bundle: whether third-party packages are installed into their assets (pip and an index).

    Raises:
        ConfigurationError: a setting is wrong.

    """
    app = App(
        outdir=str(outdir),
        context={**project_context(), **context, **({} if bundle else NO_BUNDLING)},
        analytics_reporting=False,
    )
    synthesizer = DefaultStackSynthesizer(
        file_assets_bucket_name=bucket, generate_bootstrap_version_rule=False
    )
    stack = ShardFleetStack(app, name, project=asset_root(), synthesizer=synthesizer)
    notes = s3.Bucket.from_bucket_name(stack, "Notes", bucket)
    for keys in writes:
        notes.grant_put(stack.fleet, keys)
    app.synth()
    return outdir
