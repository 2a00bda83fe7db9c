"""
The layers: the library, the third-party packages it needs, and on request an SDK of its own.

More than one, so that a change of our code does not upload protobuf again.
"""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from shardfleet_cdk.assets import asset_folder, library_code
from shardfleet_cdk.bundling import PLATFORM, bundled_code


class FleetLayers(Construct):
    """
    The layers of manager and worker.

    Args:
        scope: the parent construct.
        construct_id: within it.
        sdk_services: with an SDK that knows these services and the fleet's own; None: without one,
            because Lambda's runtime has it.

    Attributes:
        library: `shardfleet` itself.
        packages: what `layer/requirements.txt` pins.
        sdk: what `layer/sdk/requirements.txt` pins, without the data of other services, or None.

    """

    def __init__(
        self, scope: Construct, construct_id: str, *, sdk_services: Sequence[str] | None = None
    ) -> None:
        super().__init__(scope, construct_id)
        self.library = lambda_.LayerVersion(
            self,
            "Library",
            code=library_code(),
            description="shardfleet: the library",
            compatible_runtimes=[PLATFORM.runtime],
            compatible_architectures=[PLATFORM.architecture],
        )
        self.packages = lambda_.LayerVersion(
            self,
            "Packages",
            code=bundled_code(asset_folder("layer"), inside="python"),
            description="shardfleet: third-party packages",
            compatible_runtimes=[PLATFORM.runtime],
            compatible_architectures=[PLATFORM.architecture],
        )

        self.sdk: lambda_.LayerVersion | None = None
        if sdk_services is not None:
            self.sdk = lambda_.LayerVersion(
                self,
                "Sdk",
                code=bundled_code(
                    asset_folder("layer/sdk"), inside="python", sdk_services=sdk_services
                ),
                description="shardfleet: the SDK, with the services that are used",
                compatible_runtimes=[PLATFORM.runtime],
                compatible_architectures=[PLATFORM.architecture],
            )

    def all(self) -> list[lambda_.ILayerVersion]:
        """Return all; no file is in two, so their order says nothing (the CDK sorts them)."""
        return [layer for layer in (self.library, self.packages, self.sdk) if layer is not None]
