"""
The layers: the library, the third-party packages it needs, and on request an SDK of its own.

More than one, so that a change of our code does not upload protobuf again.
"""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import Stack
from aws_cdk import aws_lambda as lambda_
from aws_cdk.aws_s3_assets import Asset
from constructs import Construct

from shardfleet_cdk.assets import asset_folder
from shardfleet_cdk.bundling import library_code, package_code
from shardfleet_cdk.lambda_platform import LambdaPlatform


class FleetLayers(Construct):
    """
    The layers of manager and worker.

    Args:
        scope: the parent construct.
        construct_id: within it.
        platform: what the functions run on.
        sdk_services: with an SDK that knows these services and the fleet's own; None: without one,
            because Lambda's runtime has it.

    Attributes:
        platform: as given.
        library: `shardfleet` itself.
        packages: what `layer/requirements.txt` pins.
        sdk: what `layer/sdk/requirements.txt` pins, without the data of other services, or None.

    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        platform: LambdaPlatform,
        sdk_services: Sequence[str] | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        self.platform = platform
        with library_code(
            platform=platform.packages, is_bundled=Stack.of(self).bundling_required
        ) as code:
            self.library = self._layer("Library", code, about="the library")
        self.packages = self._layer(
            "Packages",
            package_code(asset_folder("layer"), platform=platform.packages, inside="python"),
            about="third-party packages",
        )
        self.sdk: lambda_.LayerVersion | None = None
        if sdk_services is not None:
            code = package_code(
                asset_folder("layer/sdk"),
                platform=platform.packages,
                inside="python",
                sdk_services=sdk_services,
            )
            about = "the SDK, with the services that are used"
            self.sdk = self._layer("Sdk", code, about=about)

    def _layer(self, name: str, code: lambda_.Code, *, about: str) -> lambda_.LayerVersion:
        return lambda_.LayerVersion(
            self,
            name,
            code=code,
            description=f"shardfleet: {about}",
            compatible_runtimes=[self.platform.runtime],
            compatible_architectures=[self.platform.architecture],
        )

    @property
    def fingerprint(self) -> str:
        """Return what changes with the content of any layer."""
        assets = [layer.node.find_child("Code") for layer in self._made()]
        return ", ".join(asset.asset_hash for asset in assets if isinstance(asset, Asset))

    def all(self) -> list[lambda_.ILayerVersion]:
        """Return all; no file is in two, so their order says nothing (the CDK sorts them)."""
        return [*self._made()]

    def _made(self) -> list[lambda_.LayerVersion]:
        return [layer for layer in (self.library, self.packages, self.sdk) if layer is not None]
