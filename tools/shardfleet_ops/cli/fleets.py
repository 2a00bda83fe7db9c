"""
From the name of a stack to the fleets in it, whoever's app made it.

`ShardFleet` makes one custom resource per fleet, whose physical id is the name of its manager's
function, and that function's environment holds the fleet's whole configuration. So
ListStackResources and GetFunctionConfiguration tell all there is to know, of any stack and of those
nested in it. Outputs would be the stack's, not the construct's: there are 200 of them at most,
`cdk deploy` prints each, and those of a nested stack are not seen. Tags are listed a while later,
and by another service, which needs a right of its own.
"""

import asyncio
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from shardfleet.config import FleetConfig
from shardfleet.errors import ConfigurationError, ShardfleetError

DEFAULT_STACK = "ShardFleetStack"
FLEET = "Custom::ShardFleetFirstRun"
NESTED_STACK = "AWS::CloudFormation::Stack"
# What the CDK makes of `<the construct's path>/FirstRun/Run`: its words, none twice, and a hash.
_ID_IN_FLEET = re.compile(r"FirstRun[0-9A-F]{8}$")

StackOption = Annotated[
    str,
    typer.Option(
        "--stack",
        "--application",
        metavar="NAME",
        envvar="SHARDFLEET_STACK",
        help="The CloudFormation stack of the fleet, or the application that processes run.",
    ),
]
DeployedOption = Annotated[
    str,
    typer.Option(
        metavar="STACK", envvar="SHARDFLEET_STACK", help="The CloudFormation stack of the fleet."
    ),
]
FleetOption = Annotated[
    str,
    typer.Option(
        "--fleet",
        metavar="NAME",
        envvar="SHARDFLEET_FLEET",
        help="The fleet, where the stack has several: its name.",
    ),
]


@dataclass(frozen=True, slots=True)
class FleetName:
    """
    What a person calls a fleet.

    Attributes:
        stack: the stack that deployed it, by name or ARN, or its application.
        fleet: its own name; empty where it is the only one of the stack.

    """

    stack: str
    fleet: str = ""

    def __str__(self) -> str:
        return f"{self.stack}, {self.fleet}" if self.fleet else self.stack


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedFleet:
    """
    A fleet as it was found.

    Attributes:
        config: as its manager has it.
        manager: the name of the manager's function; empty: processes run the fleet.
        resources: what else its construct made: type and physical id.

    """

    config: FleetConfig
    manager: str
    resources: Sequence[tuple[str, str]]

    def of_type(self, wanted: str) -> list[str]:
        """Return the physical ids of its resources of a type."""
        return [physical for kind, physical in self.resources if kind == wanted]


class FleetNotSeen(ConfigurationError):
    """
    A stack has no fleet that can be looked at.

    Attributes:
        found: what there is instead.
        remedy: what to do about it.

    """

    def __init__(self, stack: str, found: str, remedy: str) -> None:
        """Name the option that was meant."""
        self.found, self.remedy = f"--stack {stack}: {found}", remedy
        super().__init__(f"{self.found}; {remedy}")


def find_fleet(name: FleetName) -> DeployedFleet:
    """
    Find the fleet that is meant.

    Raises:
        FleetNotSeen: no such stack, or no fleet in it that can be asked.
        ConfigurationError: none of that name, or several and none was named.

    """
    try:
        found = fleets_of(name.stack)
    except FleetNotSeen:
        if (config := application_config(name.stack)) is None:
            raise
        return DeployedFleet(config=config, manager="", resources=())
    names = ", ".join(fleet.config.fleet for fleet in found)
    wanted = [fleet for fleet in found if name.fleet in ("", fleet.config.fleet)]
    if not wanted:
        raise ConfigurationError(
            f"--fleet {name.fleet}: not in the stack {name.stack}, whose fleets are: {names}"
        )
    if len(wanted) > 1:
        raise ConfigurationError(
            f"--stack {name.stack}: it has {len(wanted)} fleets, say which with --fleet: {names}"
        )
    return wanted[0]


def find_functions(name: FleetName) -> DeployedFleet:
    """
    Find the fleet that is meant, for what is asked of its functions.

    Raises:
        FleetNotSeen, ConfigurationError: as above; or it has no functions.

    """
    found = find_fleet(name)
    if not found.manager:
        raise ConfigurationError(
            f"--application {name}: processes run it, and it has no function that could be asked"
        )
    return found


def application_config(application: str) -> FleetConfig | None:
    """Return the configuration that the processes of an application keep; None: they keep none."""
    from shardfleet.adapters.clients.aws_clients import AwsClients, ConnectionLimits
    from shardfleet.adapters.dynamodb.leases import TablePools
    from shardfleet.adapters.dynamodb.state import DynamoDBStateStore
    from shardfleet.adapters.thread_pool import ThreadPool
    from shardfleet.engine.state.documents import Documents
    from shardfleet.engine.state.kinds import CONFIG
    from shardfleet_processes.offers import THE_CONFIG
    from shardfleet_processes.worker import state_table_of

    reads = AwsClients(ConnectionLimits(writes=1, reads=1, streams=1)).table_reads
    pool = ThreadPool("application", threads=1)
    pools = TablePools(writes=pool, reads=pool, write_client=reads, read_client=reads)
    store = DynamoDBStateStore(state_table_of(application), pools)
    with suppress(ShardfleetError):
        found = asyncio.run(Documents.of(store).get(CONFIG, THE_CONFIG))
        return FleetConfig.from_env(found.body.env) if found and found.body else None
    return None


def fleets_of(stack: str) -> list[DeployedFleet]:
    """
    Find the fleets of a stack, and of the stacks nested in it; one at least.

    Raises:
        FleetNotSeen: no such stack, no fleet in it, or a fleet without its manager.

    """
    import boto3

    # A session of its own: the default one keeps the credentials that it saw first.
    session: Any = boto3.session.Session()
    found = list(_fleets_in(session, stack))
    if not found:
        raise FleetNotSeen(
            stack,
            "it holds no fleet, as nothing in it was made by a ShardFleet",
            "name the stack that deployed the fleet",
        )
    return sorted(found, key=lambda fleet: fleet.config.fleet)


def _fleets_in(session: Any, stack: str) -> Iterator[DeployedFleet]:
    resources = _resources(session, stack)
    markers = [each for each in resources if each["ResourceType"] == FLEET]
    constructs = {inside(each["LogicalResourceId"]) for each in markers}
    for marker in markers:
        if not marker.get("PhysicalResourceId"):
            raise FleetNotSeen(
                stack,
                f"its fleet is not there yet ({marker['ResourceStatus']})",
                "ask again when the stack is deployed",
            )
        construct = inside(marker["LogicalResourceId"])
        yield DeployedFleet(
            config=_config(session, stack, marker["PhysicalResourceId"]),
            manager=marker["PhysicalResourceId"],
            resources=[
                (each["ResourceType"], each.get("PhysicalResourceId", ""))
                for each in resources
                if _longest(each["LogicalResourceId"], constructs) == construct
            ],
        )
    for each in resources:
        if each["ResourceType"] == NESTED_STACK and each.get("PhysicalResourceId"):
            yield from _fleets_in(session, each["PhysicalResourceId"])


def inside(marker: str) -> str:
    """Return how the ids of a fleet's resources begin, by the id of its custom resource."""
    return _ID_IN_FLEET.sub("", marker)


def _longest(logical_id: str, beginnings: set[str]) -> str:
    """Return which construct an id is of: `FleetTwo…` begins as `Fleet…` does, too."""
    return max((each for each in beginnings if logical_id.startswith(each)), key=len, default="")


def _resources(session: Any, stack: str) -> list[dict[str, Any]]:
    from botocore.exceptions import ClientError

    pages = session.client("cloudformation").get_paginator("list_stack_resources")
    try:
        return [
            each
            for page in pages.paginate(StackName=stack)
            for each in page["StackResourceSummaries"]
        ]
    except KeyError as error:
        raise FleetNotSeen(stack, f"CloudFormation's answer lacks {error}", "ask again") from error
    except ClientError as error:
        raise FleetNotSeen(
            stack,
            _said(error),
            "name the stack that deployed the fleet, and check region, credentials and endpoint",
        ) from error


def _config(session: Any, stack: str, manager: str) -> FleetConfig:
    from botocore.exceptions import ClientError

    try:
        found = session.client("lambda").get_function_configuration(FunctionName=manager)
    except ClientError as error:
        raise FleetNotSeen(
            stack,
            f"its lease manager {manager} cannot be asked for the fleet's configuration: "
            + _said(error),
            "deploy the stack again, or get the right lambda:GetFunctionConfiguration",
        ) from error
    variables = found.get("Environment", {}).get("Variables")
    if not variables:
        raise FleetNotSeen(
            stack,
            f"Lambda does not tell the environment of its lease manager {manager}",
            "get the right kms:Decrypt for the function's key, or deploy the stack again",
        )
    return FleetConfig.from_env(variables)


def _said(error: Any) -> str:
    """Return what a service says of a refusal, its code if that is all."""
    details = error.response.get("Error", {})
    return str(details.get("Message") or details.get("Code") or "refused without a reason")
