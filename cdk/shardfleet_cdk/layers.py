"""
The two layers: the library, and the third-party packages it needs.

Two, so that a change of our code does not upload protobuf again.
"""

from __future__ import annotations

from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from shardfleet_cdk.assets import asset_folder, library_code
from shardfleet_cdk.bundling import PLATFORM, bundled_code


class FleetLayers(Construct):
    """
    The layers of manager and worker.

    Attributes:
        library: `shardfleet` itself.
        packages: what `layer/requirements.txt` pins.

    """

    def __init__(self, scope: Construct, construct_id: str) -> None:
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

    def all(self) -> list[lambda_.ILayerVersion]:
        """Return both; no file is in both, so their order says nothing (the CDK sorts them)."""
        return [self.library, self.packages]
