"""
The embedded AWS: a whole account on the loopback interface, for development, tests and the demo.

`EmbeddedAws` starts it, `deploy` puts a synthesized cloud assembly into it. Nothing here is part of
the Lambda layer's asset.
"""

from shardfleet.local.deploy import DeploymentFailed, StackOutputs, deploy
from shardfleet.local.launcher import EmbeddedAws, EmbeddedAwsFailed, WorkerProcess
from shardfleet.local.serving import serve

__all__ = [
    "DeploymentFailed",
    "EmbeddedAws",
    "EmbeddedAwsFailed",
    "StackOutputs",
    "WorkerProcess",
    "deploy",
    "serve",
]
