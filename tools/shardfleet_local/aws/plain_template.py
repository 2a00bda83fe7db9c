"""
A cloud assembly as plain CloudFormation, for whoever has neither the CDK nor its bootstrap stack.

It is one template, and archives whose names say what is in them and end with a part of their hash:
other code under the same name would be no change that CloudFormation could see.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardfleet.errors import ConfigurationError
from shardfleet_local.aws.deploy import file_assets, stack_of, zip_folder

BUCKET, PREFIX = "AssetBucket", "AssetPrefix"
"""The template's parameters."""

_BUCKET_PATTERN = "^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$"
_PREFIX_PATTERN = "^([A-Za-z0-9!_.*'()-]+/)*$"
_HASH_SHOWN = 12  # ours
_PARAMETERS = {
    BUCKET: {
        "Type": "String",
        "AllowedPattern": _BUCKET_PATTERN,
        "Description": "The bucket that the archives were copied to, in the stack's region.",
    },
    PREFIX: {
        "Type": "String",
        "Default": "",
        "AllowedPattern": _PREFIX_PATTERN,
        "Description": "What their keys begin with: nothing, or something that ends with a slash.",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainStack:
    """
    A stack without the CDK.

    Attributes:
        name: of the stack.
        template: in JSON.
        archives: the folder of each archive, by the archive's name.

    """

    name: str
    template: str
    archives: Mapping[str, Path]

    def write(self, folder: Path) -> None:
        """Write the template and, into `assets`, the archives."""
        (folder / "assets").mkdir(parents=True)
        (folder / "template.json").write_text(self.template, "utf-8")
        for name, source in self.archives.items():
            (folder / "assets" / name).write_bytes(zip_folder(source))


def plain_stack(assembly: Path) -> PlainStack:
    """
    Return an assembly's only stack without what ties it to the CDK.

    Raises:
        ConfigurationError: the folder is no assembly of one stack, or an asset is not built.

    """
    name = stack_of(assembly)
    file = f"{name}.template.json"
    body = json.loads((assembly / file).read_text("utf-8"))
    archives, keys = {}, {}
    for asset in file_assets(assembly, file):
        source = asset["source"]
        if source["path"] == file:
            continue
        if source.get("packaging") != "zip":
            raise ConfigurationError(
                f"{asset['displayName']}: a stack with code and layers alone can be written so, "
                "without nested stacks and files"
            )
        path = (assembly / source["path"]).resolve()
        if assembly.resolve() not in path.parents:
            raise ConfigurationError(
                f"{asset['displayName']}: its packages were not installed when {assembly} was "
                "synthesized (aws:cdk:bundling-stacks); synthesize again without that"
            )
        for destination in asset["destinations"].values():
            keys[destination["objectKey"]] = _archive_name(asset["displayName"], path)
        archives[_archive_name(asset["displayName"], path)] = path
    body = _from_bucket(body, keys)
    body["Parameters"] = {
        **{k: v for k, v in body.get("Parameters", {}).items() if k != "BootstrapVersion"},
        **_PARAMETERS,
    }
    body.get("Rules", {}).pop("CheckBootstrapVersion", None)
    if not body.get("Rules", True):
        del body["Rules"]
    return PlainStack(name=name, template=json.dumps(body, indent=1) + "\n", archives=archives)


def _archive_name(shown: str, path: Path) -> str:
    """Name an archive by the construct that it is of: `Fleet/Worker/Function/Code`."""
    parts = [part for part in shown.split("/") if part not in ("Code", "Function")]
    digest = path.name.removeprefix("asset.")[:_HASH_SHOWN]
    return f"{'-'.join(parts).lower()}-{digest}.zip"


def _from_bucket(value: Any, keys: Mapping[str, str]) -> Any:
    """Replace each place of an archive in S3 by the one that the parameters name."""
    if isinstance(value, dict):
        if value.get("S3Key") in keys:
            key = {"Fn::Sub": f"${{{PREFIX}}}{keys[value['S3Key']]}"}
            return {**value, "S3Bucket": {"Ref": BUCKET}, "S3Key": key}
        return {name: _from_bucket(each, keys) for name, each in value.items()}
    return [_from_bucket(each, keys) for each in value] if isinstance(value, list) else value
