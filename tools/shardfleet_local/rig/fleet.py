"""A whole fleet on an embedded AWS: synthesized, deployed as it is, watched by a ledger."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.httpsession import URLLib3Session

from shardfleet.adapters.dynamodb.items import is_foreign, lease_from_item
from shardfleet.adapters.kinesis.shards import list_shards
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.shards import Shard
from shardfleet.errors import ConfigurationError
from shardfleet_local.aws.deploy import StackOutputs, deploy, stack_of
from shardfleet_local.aws.launcher import EmbeddedAws, EmbeddedAwsFailed, WorkerProcess
from shardfleet_local.aws.settings import AwsBehaviour
from shardfleet_local.rig.assembly_cache import AssemblyCache, key_of
from shardfleet_local.rig.ledger import DemoLedger
from shardfleet_local.rig.proxy import FaultDice, FaultyProxy

HANDLER_VARIABLE = "SHARDFLEET_HANDLER"
FUNCTION_VARIABLE = "SHARDFLEET_HANDLER_FUNCTION"
READING, POLLING, FAN_OUT = "shardfleet:reading", "polling", "fan-out"
"""A key of the context, and what it may say."""

Context = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """
    What to run.

    Attributes:
        project: folder of the handler's code and of a `cdk.json` (default: shardfleet's own).
        context: overrides of the context of `cdk.json`, e.g. ``{"shardfleet:config": {...}}``.
            Left empty, the template is the one that `make synth` writes.
        enforce_iam: whether the functions have their roles' rights only.
        environment: further variables for the worker and manager processes.
        behaviour: how the services behave (default: quotas on, and kind).
        cache: where the synthesized assembly is looked for first, and kept.
        dice: which of the functions' calls to AWS go wrong (default: none).

    """

    project: Path | None = None
    context: Context = field(default_factory=dict)
    enforce_iam: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    behaviour: AwsBehaviour = field(default_factory=AwsBehaviour)
    cache: AssemblyCache | None = None
    dice: FaultDice | None = None

    @property
    def is_pushed(self) -> bool:
        """Return whether the context says that records are pushed."""
        return bool(self.context.get(READING, POLLING) != POLLING)


def reading_context(reading: str) -> Context:
    """
    Return the context of a way to read.

    Raises:
        ConfigurationError: there is no such way.

    """
    if reading not in (POLLING, FAN_OUT):
        raise ConfigurationError(f"--reading {reading}: {POLLING} or {FAN_OUT} expected")
    return {} if reading == POLLING else {READING: reading}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningFleet:
    """
    A deployed fleet.

    Attributes:
        aws: the account it runs in.
        stack: what was deployed.
        ledger: what its handlers have finished.
        template: the synthesized template's file.

    """

    aws: EmbeddedAws
    stack: StackOutputs
    ledger: DemoLedger
    template: Path

    @property
    def is_pushed(self) -> bool:
        """Return whether its records are pushed: its stream has a consumer."""
        found = self.aws.client("kinesis").list_stream_consumers(StreamARN=self.stream_arn)
        return bool(found["Consumers"])

    @property
    def stream_arn(self) -> str:
        """The stream."""
        return self.stack.outputs["StreamArn"]

    @property
    def stream_name(self) -> str:
        """The stream."""
        return self.stack.outputs["StreamName"]

    def function(self, output: str) -> dict[str, Any]:
        """Return the configuration of a function, by the stack's output with its name."""
        client = self.aws.client("lambda")
        name = self.stack.outputs[output]
        configuration: dict[str, Any] = client.get_function_configuration(FunctionName=name)
        return configuration

    def workers(self) -> list[WorkerProcess]:
        """List the live worker processes."""
        return self.aws.worker_processes(self.stack.outputs["WorkerFunction"])

    def managers(self) -> list[WorkerProcess]:
        """List the live manager processes."""
        return self.aws.worker_processes(self.stack.outputs["ManagerFunction"])

    def kill(self, pid: int) -> bool:
        """
        Kill a Lambda process of this fleet with SIGKILL.

        Returns:
            False if it is no live process of the fleet.

        """
        if pid not in {each.pid for each in (*self.workers(), *self.managers())}:
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def leases(self) -> list[Lease]:
        """Read the lease table, consistently, ordered by shard."""
        pages = self.aws.client("dynamodb").get_paginator("scan")
        found = pages.paginate(TableName=self.stack.outputs["LeaseTable"], ConsistentRead=True)
        items = [item for page in found for item in page["Items"]]
        leases = [lease_from_item(item) for item in items if not is_foreign(item)]
        return sorted(leases, key=lambda lease: lease.lease_key)

    def shards(self) -> list[Shard]:
        """List all shards, closed ones included."""
        return list_shards(self.aws.client("kinesis"), self.stream_arn)

    def inject(self, fault: Mapping[str, Any]) -> None:
        """
        Put a fault of the Kinesis engine into force on this stream (see `kinesis/faults.py`).

        Args:
            fault: in wire form, e.g. ``{"Kind": "ThrottleReads", "DurationMs": 60_000}``.

        Raises:
            EmbeddedAwsFailed: the engine refuses the fault.

        """
        self._disturb({"Action": "Inject", "Fault": {"StreamName": self.stream_name, **fault}})

    def clear_faults(self) -> None:
        """End all faults of the Kinesis engine."""
        self._disturb({"Action": "Clear"})

    def trim(self, shard_id: str) -> None:
        """
        Let a shard's retention pass; a closed shard leaves the stream.

        Raises:
            EmbeddedAwsFailed: there is no such shard.

        """
        self._disturb({"Action": "Trim", "StreamName": self.stream_name, "ShardId": shard_id})

    def _disturb(self, body: Mapping[str, Any]) -> None:
        request = AWSRequest(
            method="POST",
            url=self.aws.endpoint_url,
            headers={
                "Content-Type": "application/x-amz-json-1.1",
                "X-Amz-Target": "ShardfleetLocal.Faults",
            },
            data=json.dumps(body).encode(),
        )
        # The signature's scope is what routes a request to the Kinesis engine.
        key = Credentials(self.aws.key.id, self.aws.key.secret)
        SigV4Auth(key, "kinesis", self.aws.region).add_auth(request)
        answer = URLLib3Session(proxies={}).send(request.prepare())
        if answer.status_code != HTTPStatus.OK:
            raise EmbeddedAwsFailed(f"{dict(body)} was refused: {answer.text}")


@contextlib.contextmanager
def running_fleet(
    ledger_file: Path,
    plan: FleetPlan | None = None,
    *,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[RunningFleet]:
    """
    Synthesize the stack, start an embedded AWS, deploy the stack to it; stop all at the end.

    Nothing is installed and nothing leaves the machine: third-party packages come from the local
    environment. The handler that the template names is called by `probe.ledger_probe`.

    Args:
        ledger_file: where workers note what was handled; its folder must exist.
        plan: what to run (default: the repository's stack as it is).
        say: told of each step as it begins.

    Raises:
        ConfigurationError: the plan is wrong, or the CDK is not installed.
        EmbeddedAwsFailed: the embedded AWS did not start.
        DeploymentFailed: the stack did not settle.

    """
    plan = plan or FleetPlan()
    ledger = DemoLedger(ledger_file)
    with tempfile.TemporaryDirectory(prefix="shardfleet-") as folder:
        template = synthesized(Path(folder) / "cdk.out", plan, say=say)
        variables = {**plan.environment, **ledger.environment(handler_of(template))}
        say("starting an embedded AWS")
        with contextlib.ExitStack() as opened:
            aws = opened.enter_context(
                EmbeddedAws(
                    enforce_iam=plan.enforce_iam,
                    lambda_environment=variables,
                    behaviour=plan.behaviour,
                )
            )
            if plan.dice:
                proxy = FaultyProxy(aws.endpoint_url, plan.dice, key=aws.key)
                opened.enter_context(proxy)
                aws.set_lambda_environment({**variables, **proxy.environment()})
            say("deploying the stack")
            name = template.name.removesuffix(".template.json")
            stack = deploy(template.parent, name, aws)
            yield RunningFleet(aws=aws, stack=stack, ledger=ledger, template=template)
            say("stopping everything")


@contextlib.contextmanager
def needing_the_cdk() -> Iterator[None]:
    """Say what to install where an import of the CDK fails."""
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(
            f"the stack is synthesized on the spot, which needs the CDK ({error.name or error}): "
            "pip install 'shardfleet[local]'"
        ) from error


def synthesized(
    folder: Path, plan: FleetPlan, *, say: Callable[[str], None] = lambda _: None
) -> Path:
    """
    Write the cloud assembly without third-party packages and return the template's path.

    An assembly that was made from the same code, settings, versions and environment is taken from
    the plan's cache.

    Raises:
        ConfigurationError: the context is wrong, or the CDK or Node is missing.

    """
    key = key_of(plan.project, plan.context) if plan.cache else ""
    if plan.cache and plan.cache.take(key, folder):
        say("nothing has changed since the stack was synthesized")
        return folder / f"{stack_of(folder)}.template.json"
    say("synthesizing the stack")
    with needing_the_cdk():
        from shardfleet_cdk.synthesis import synthesize  # noqa: PLC0415 - it starts Node
    written: Path = synthesize(folder, context=plan.context, project=plan.project)
    if plan.cache:
        plan.cache.keep(key, folder)
    return written


def handler_of(template: Path) -> str:
    """
    Return the handler that a template's worker function calls, `module:function`.

    Empty where the handler is a function of its own, which the worker invokes.

    Raises:
        ConfigurationError: no function of the template names one.

    """
    resources = json.loads(template.read_text(encoding="utf-8"))["Resources"].values()
    for resource in resources:
        if resource["Type"] == "AWS::Lambda::Function":
            environment = resource["Properties"].get("Environment", {}).get("Variables", {})
            if HANDLER_VARIABLE in environment:
                return str(environment[HANDLER_VARIABLE])
            if FUNCTION_VARIABLE in environment:
                return ""
    raise ConfigurationError(
        f"{template.name}: no function has the variable {HANDLER_VARIABLE}, so there is no handler "
        "to run"
    )
