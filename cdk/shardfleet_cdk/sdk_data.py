"""
An SDK with the data of a few services: for a layer of its own, instead of Lambda's.

botocore carries 30 MB of JSON about some 440 services, and making a client lists them all. With
those alone that are used, a cold start is a little shorter (`cold_start_pruned_sdk` of the
benchmarks), and any other service is unknown to the function: so it is an option, and names what
the handler needs besides.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

FLEET_SERVICES = ("dynamodb", "kinesis", "lambda", "s3", "sqs", "stepfunctions")
"""What manager and worker themselves call, by botocore's names."""

_PACKAGES = ("botocore", "boto3")


class UnknownServices(ValueError):
    """The SDK has no data of a service that was asked for."""


def prune(packages: Path, services: Collection[str]) -> None:
    """
    Remove the data of all other services from an installed SDK.

    Args:
        packages: where `botocore` and `boto3` were installed.
        services: names of folders in `botocore/data`; the fleet's own are kept, too.

    Raises:
        UnknownServices: there is no such folder.

    """
    kept = {*FLEET_SERVICES, *services}
    known = {folder.name for folder in (packages / "botocore/data").iterdir() if folder.is_dir()}
    if unknown := sorted(kept - known):
        raise UnknownServices(
            f"sdk_services: {', '.join(unknown)} found, a service of botocore expected, as in "
            "`boto3.client('…')`"
        )
    for package in _PACKAGES:
        for folder in (packages / package / "data").iterdir():
            # What are files (endpoints, partitions, defaults, retries) belong to all services.
            if folder.is_dir() and folder.name not in kept:
                shutil.rmtree(folder)
