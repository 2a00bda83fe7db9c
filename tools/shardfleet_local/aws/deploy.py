"""
Deploying a synthesized cloud assembly, with boto3 alone: what `cdk bootstrap` and `cdk deploy` do.

The template is uploaded byte for byte as it was synthesized.
"""

import hashlib
import io
import json
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from botocore.config import Config
from botocore.exceptions import ClientError

from shardfleet.errors import ConfigurationError, ShardfleetError

BOOTSTRAP_PARAMETER = "/cdk-bootstrap/hnb659fds/version"
"""Where the CDK's default synthesizer looks for the bootstrap stack's version."""

BOOTSTRAP_VERSION = "30"
"""A version of the bootstrap stack that satisfies every template of this CDK release."""

TEMPLATE_BODY_LIMIT = 51_200  # fact F04
"""Bytes of a template that CreateStack takes inline; above it must come from S3 (AWS quota)."""

ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # ours
"""The modification time of every archive entry: the oldest that a zip file can say."""

CAPABILITIES = ["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"]


class DeploymentFailed(ShardfleetError):
    """A stack did not reach the wanted state; the message names the resource and the reason."""


@dataclass(frozen=True, slots=True)
class DeployWait:
    """How long a stack may take to settle, and how often it is looked at, in seconds."""

    limit_s: float
    look_every_s: float


AT_ONCE = DeployWait(limit_s=300.0, look_every_s=0.05)  # ours
"""For the embedded AWS, where a stack takes seconds."""


class DeployTarget(Protocol):
    """What the deployer needs of an account: `EmbeddedAws` has it."""

    @property
    def account_id(self) -> str:
        """12 digits."""

    @property
    def region(self) -> str:
        """Of everything."""

    def client(self, service: str, config: Config | None = None) -> Any:
        """Return a boto3 client."""


@dataclass(frozen=True, kw_only=True)
class StackOutputs:
    """
    What a deployed stack is made of.

    `outputs` by output key, `resources` from logical to physical id, `types` from logical id to
    resource type; `template_sha256` is the hash of the synthesized file.
    """

    stack_name: str
    template_sha256: str
    outputs: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)

    def of_type(self, resource_type: str) -> dict[str, str]:
        """Return the resources of one type, logical to physical id."""
        return {
            logical: physical
            for logical, physical in self.resources.items()
            if self.types.get(logical) == resource_type
        }


def deploy(
    assembly: Path | str,
    stack_name: str,
    account: DeployTarget,
    *,
    parameters: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
    wait: DeployWait = AT_ONCE,
) -> StackOutputs:
    """
    Create or update a stack of a cloud assembly, and wait until it has settled.

    `assembly` is the folder that `app.synth()` wrote (`cdk.out`). Raises ConfigurationError if it
    has no such stack, DeploymentFailed naming the resource that failed and why.

    `tags` are given to the stack, and by CloudFormation to all in it that can have any; `wait` is
    how patiently is waited. A template with assets in a bucket of its own needs no bootstrap, and
    then nothing is written outside of that bucket and the stack.
    """
    folder = Path(assembly)
    artifact = _stack_artifact(folder, stack_name)
    template = (folder / artifact["properties"]["templateFile"]).read_bytes()
    if BOOTSTRAP_PARAMETER in template.decode():
        _bootstrap(account)
    template_url = _publish_assets(folder, artifact, account)
    cloudformation = account.client("cloudformation")
    request = {
        "StackName": stack_name,
        "Capabilities": CAPABILITIES,
        "Parameters": [
            {"ParameterKey": key, "ParameterValue": value}
            for key, value in (parameters or {}).items()
        ],
        "Tags": [{"Key": key, "Value": value} for key, value in (tags or {}).items()],
        **_template_argument(template, template_url),
    }
    _create_or_update(cloudformation, request)
    stack = _settled(cloudformation, stack_name, wait)
    return _describe(cloudformation, stack, hashlib.sha256(template).hexdigest())


def stack_of(assembly: Path) -> str:
    """
    Return the name of an assembly's only stack.

    Raises:
        ConfigurationError: the folder is no assembly, or it has no stack or several.

    """
    stacks = _stacks(assembly)
    if len(stacks) != 1:
        raise ConfigurationError(
            f"{assembly} has {len(stacks)} stacks ({', '.join(stacks) or 'none'}), one expected"
        )
    return next(iter(stacks))


def _stack_artifact(folder: Path, stack_name: str) -> dict[str, Any]:
    stacks = _stacks(folder)
    if stack_name not in stacks:
        raise ConfigurationError(
            f"{folder} has no stack '{stack_name}'; it has {', '.join(stacks) or 'none'}"
        )
    return stacks[stack_name]


def _stacks(folder: Path) -> dict[str, dict[str, Any]]:
    manifest_file = folder / "manifest.json"
    try:
        manifest = json.loads(manifest_file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{manifest_file} does not exist: {folder} is no cloud assembly. Run `make synth` first"
        ) from error
    return {
        artifact.get("properties", {}).get("stackName", key): artifact
        for key, artifact in manifest.get("artifacts", {}).items()
        if artifact.get("type") == "aws:cloudformation:stack"
    }


def _bootstrap(account: DeployTarget) -> None:
    """Put the version parameter that every template checks."""
    account.client("ssm").put_parameter(
        Name=BOOTSTRAP_PARAMETER, Value=BOOTSTRAP_VERSION, Type="String", Overwrite=True
    )


def _publish_assets(folder: Path, artifact: Mapping[str, Any], account: DeployTarget) -> str:
    """Upload every file asset of the stack once per content; return the template's URL."""
    s3 = account.client("s3")
    template_file = artifact["properties"]["templateFile"]
    template_url = ""
    for asset in file_assets(folder, template_file):
        path = folder / asset["source"]["path"]
        packaging = asset["source"].get("packaging", "file")
        for destination in asset["destinations"].values():
            bucket = _resolved(destination["bucketName"], account)
            key = _resolved(destination["objectKey"], account)
            if _ensure_bucket(s3, bucket, account.region) or not _has_object(s3, bucket, key):
                body = zip_folder(path) if packaging == "zip" else path.read_bytes()
                s3.put_object(Bucket=bucket, Key=key, Body=body)
            if asset["source"]["path"] == template_file:
                template_url = f"{s3.meta.endpoint_url}/{bucket}/{key}"
    return template_url


def file_assets(folder: Path, template_file: str) -> list[dict[str, Any]]:
    """Return what the assembly says of a template's files: the CDK's asset manifest."""
    assets_file = folder / f"{template_file.removesuffix('.template.json')}.assets.json"
    if not assets_file.exists():
        return []
    document = json.loads(assets_file.read_text(encoding="utf-8"))
    return list(document.get("files", {}).values())


def _resolved(text: str, account: DeployTarget) -> str:
    """Replace the pseudo parameters that the default synthesizer leaves in asset names."""
    for name, value in (
        ("AWS::AccountId", account.account_id),
        ("AWS::Region", account.region),
        ("AWS::Partition", "aws"),
    ):
        text = text.replace(f"${{{name}}}", value)
    return text


def _ensure_bucket(s3: Any, bucket: str, region: str) -> bool:
    """Create the bucket if needed; say whether it was created."""
    try:
        s3.head_bucket(Bucket=bucket)
    except ClientError:
        where = {} if region == "us-east-1" else {"LocationConstraint": region}
        s3.create_bucket(Bucket=bucket, **({"CreateBucketConfiguration": where} if where else {}))
        return True
    return False


def _has_object(s3: Any, bucket: str, key: str) -> bool:
    try:
        s3.head_object(Bucket=bucket, Key=key)
    except ClientError:
        return False
    return True


def zip_folder(folder: Path) -> bytes:
    """
    Zip a folder so that the same files give the same bytes: sorted, without times.

    A folder that does not exist (an asset whose bundling was skipped) gives an archive with one
    note in it, because Lambda refuses an empty one.
    """
    archive = io.BytesIO()
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as members:
        for path in files:
            entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), ZIP_EPOCH)
            entry.external_attr = (path.stat().st_mode & 0xFFFF) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            members.writestr(entry, path.read_bytes())
        if not files:
            members.writestr(zipfile.ZipInfo("EMPTY", ZIP_EPOCH), b"This asset has no files.\n")
    return archive.getvalue()


def _template_argument(template: bytes, template_url: str) -> dict[str, str]:
    if len(template) <= TEMPLATE_BODY_LIMIT:
        return {"TemplateBody": template.decode()}
    if not template_url:
        raise DeploymentFailed(
            f"The template has {len(template)} bytes, more than CreateStack takes inline "
            f"({TEMPLATE_BODY_LIMIT}), and the assembly does not list it among its assets"
        )
    return {"TemplateURL": template_url}


def _create_or_update(cloudformation: Any, request: dict[str, Any]) -> None:
    try:
        cloudformation.create_stack(**request)
    except ClientError as error:
        if error.response["Error"]["Code"] != "AlreadyExistsException":
            raise DeploymentFailed(f"CreateStack {request['StackName']}: {error}") from error
    else:
        return
    try:
        cloudformation.update_stack(**request)
    except ClientError as error:
        if "No updates are to be performed" not in str(error):
            raise DeploymentFailed(f"UpdateStack {request['StackName']}: {error}") from error


def _settled(cloudformation: Any, stack_name: str, wait: DeployWait) -> dict[str, Any]:
    """Wait until the stack is no longer in progress. Raises DeploymentFailed unless it is well."""
    deadline = time.monotonic() + wait.limit_s
    while True:
        stack: dict[str, Any] = cloudformation.describe_stacks(StackName=stack_name)["Stacks"][0]
        status = stack["StackStatus"]
        if status in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
            return stack
        if not status.endswith("_IN_PROGRESS"):
            raise DeploymentFailed(
                f"Stack {stack_name} is {status}: {_failures(cloudformation, stack)}"
            )
        if time.monotonic() > deadline:
            raise DeploymentFailed(
                f"Stack {stack_name} is still {status} after {wait.limit_s:.0f} s"
            )
        time.sleep(wait.look_every_s)


def _failures(cloudformation: Any, stack: Mapping[str, Any]) -> str:
    """Name each resource that failed and why, in the order in which they failed."""
    events = cloudformation.describe_stack_events(StackName=stack["StackId"])["StackEvents"]
    failed = [
        f"{event['LogicalResourceId']} ({event['ResourceType']}): "
        f"{event.get('ResourceStatusReason', 'no reason given')}"
        for event in reversed(events)
        if event["ResourceStatus"].endswith("FAILED")
    ]
    return "; ".join(failed) or str(stack.get("StackStatusReason", "no reason given"))


def _describe(cloudformation: Any, stack: Mapping[str, Any], digest: str) -> StackOutputs:
    pages = cloudformation.get_paginator("list_stack_resources").paginate(
        StackName=stack["StackName"]
    )
    resources = [resource for page in pages for resource in page["StackResourceSummaries"]]
    return StackOutputs(
        stack_name=stack["StackName"],
        template_sha256=digest,
        outputs={each["OutputKey"]: each["OutputValue"] for each in stack.get("Outputs", [])},
        resources={
            each["LogicalResourceId"]: each.get("PhysicalResourceId", "") for each in resources
        },
        types={each["LogicalResourceId"]: each["ResourceType"] for each in resources},
    )
