"""EMR Serverless in the embedded AWS, which ministack lacks: our own engine, and its templates."""

import json
import math
import time
import uuid
from collections.abc import Mapping
from typing import Any

from ministack import app as ministack_app
from ministack.core import iam_actions, responses
from ministack.services.cloudformation import provisioners

from shardfleet_local.aws.patches import Patch
from shardfleet_local.aws.settings import ServerSettings
from shardfleet_local.emr_serverless.engine import EmrServerless
from shardfleet_local.emr_serverless.lives import Delays, Work
from shardfleet_local.emr_serverless.requests import EmrServerlessError, read

SERVICE = "emr-serverless"
RESOURCE_TYPE = "AWS::EMRServerless::Application"

DELAYS = Delays(create_s=0.1, start_s=0.3, stop_s=0.2, schedule_s=0.1)  # ours: a test waits for it
"""How long the service takes here; minutes on AWS."""

SETTLE_LOOK_S = 0.05
"""How often CloudFormation looks whether an application is in the state that it waits for."""

SETTLE_MOST_S = 30.0  # ours
"""How long CloudFormation waits for that."""

Properties = Mapping[str, Any]
Created = tuple[str, dict[str, Any]]

_engines: dict[tuple[str, str], EmrServerless] = {}
_work = [Work()]


def set_work(*, runs_s: float | None, succeeds: bool, stops_s: float) -> None:
    """Set what attempts of runs do that begin from now on; `runs_s` None: they never end."""
    ends_s = math.inf if runs_s is None else float(runs_s)
    _work[0] = Work(runs_s=ends_s, succeeds=bool(succeeds), stops_s=float(stops_s))


def engine() -> EmrServerless:
    """Return the engine of the account and region of the request being served."""
    owner = responses.get_account_id(), responses.get_region()
    if owner not in _engines:
        account_id, region = owner
        _engines[owner] = EmrServerless(
            clock=time.time,
            job=lambda _: _work[0],
            delays=DELAYS,
            account_id=account_id,
            region=region,
        )
    return _engines[owner]


async def _handle(*request: Any) -> tuple[int, dict[str, str], bytes]:
    method, path, _headers, body, query = request
    headers = {"Content-Type": "application/json"}
    lists = {name: value if isinstance(value, list) else [value] for name, value in query.items()}
    try:
        answer = engine().call(*read(method, path, query=lists, body=body))
    except EmrServerlessError as error:
        headers["x-amzn-ErrorType"] = error.code
        return error.status, headers, json.dumps({"message": error.message}).encode()
    return 200, headers, json.dumps(answer).encode()


def create(logical_id: str, properties: Properties, stack_name: str) -> Created:
    """Create an AWS::EMRServerless::Application."""
    request = _request(properties)
    request.setdefault(
        "name", provisioners._physical_name(stack_name, logical_id, max_len=64)
    )  # fact R06
    made = engine().call("CreateApplication", request | {"clientToken": uuid.uuid4().hex})
    _settle(made["applicationId"], "CREATED")
    return _created(made["applicationId"])


def update(physical_id: str, old: Properties, new: Properties) -> Created:
    """Update an application in place. Raises EmrServerlessError unless CREATED or STOPPED."""
    if old != new:
        unchangeable = ("name", "type", "tags")
        request = {k: v for k, v in _request(new).items() if k not in unchangeable}
        token = {"applicationId": physical_id, "clientToken": uuid.uuid4().hex}
        engine().call("UpdateApplication", request | token)
    return _created(physical_id)


def delete(physical_id: str, _: Properties) -> None:
    """Delete an application; as on AWS nobody stops it before (fact R02)."""
    try:
        engine().call("DeleteApplication", {"applicationId": physical_id})
    except EmrServerlessError as error:
        if error.code != "ResourceNotFoundException":
            raise


def _settle(application_id: str, state: str) -> None:
    deadline = time.monotonic() + SETTLE_MOST_S
    asked = {"applicationId": application_id}
    while engine().call("GetApplication", asked)["application"]["state"] != state:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{application_id} is not {state}")  # ours
        time.sleep(SETTLE_LOOK_S)


def _created(application_id: str) -> Created:
    found = engine().call("GetApplication", {"applicationId": application_id})["application"]
    return application_id, {"ApplicationId": application_id, "Arn": found["arn"]}


def _request(properties: Properties) -> dict[str, Any]:
    """Return the request for a template's properties: the same names, but for the first letter."""
    request: dict[str, Any] = _lowered(properties)
    if "tags" in request:
        request["tags"] = {each["key"]: each["value"] for each in request["tags"]}
    return request


def _lowered(value: Any, name: str = "") -> Any:
    if isinstance(value, Mapping):
        return {k[:1].lower() + k[1:]: _lowered(each, k) for k, each in value.items()}
    if isinstance(value, list):
        return [_lowered(each) for each in value]
    # A template may write numbers and truth values as text.
    if name in ("IdleTimeoutMinutes", "MaxConcurrentRuns", "QueueTimeoutMinutes"):
        return int(value)
    return str(value).lower() == "true" if name == "Enabled" else value


def _install(_: ServerSettings) -> None:
    ministack_app.SERVICE_HANDLERS[SERVICE] = _handle
    provisioners._RESOURCE_HANDLERS[RESOURCE_TYPE] = {
        "create": create,
        "update": lambda *given: update(*given[:3]),
        "delete": delete,
    }


def _enforce_policies(_: ServerSettings) -> None:
    iam_actions.SERVICE_TO_IAM_NAMESPACE[SERVICE] = SERVICE
    iam_actions._BOTOCORE_SERVICE_MAP[SERVICE] = [SERVICE]
    stock = iam_actions.extract_resource_arn

    def extract(service: str, *request: Any) -> str:
        if service != SERVICE:
            return str(stock(service, *request))
        _method, path, *_ = request
        if path in ("", "/", "/applications"):
            return "*"
        # StartApplication and StopApplication are of the application, which is what stands before.
        resource = path.removesuffix("/start").removesuffix("/stop").removesuffix("/jobruns")
        owner = f"{responses.get_region()}:{responses.get_account_id()}"
        return f"arn:aws:{SERVICE}:{owner}:{resource}"

    iam_actions.extract_resource_arn = extract


PATCHES = (
    Patch(
        gap="There is no EMR Serverless, and its applications are an unknown type",
        touches=(
            "ministack.app:SERVICE_HANDLERS",
            "ministack.core.responses:get_account_id",
            "ministack.core.responses:get_region",
            "ministack.services.cloudformation.provisioners:_RESOURCE_HANDLERS",
            "ministack.services.cloudformation.provisioners:_physical_name",
        ),
        apply=_install,
    ),
    Patch(
        gap="With IAM enforced, EMR Serverless lets everybody in",
        touches=(
            "ministack.core.iam_actions:SERVICE_TO_IAM_NAMESPACE",
            "ministack.core.iam_actions:_BOTOCORE_SERVICE_MAP",
            "ministack.core.iam_actions:extract_resource_arn",
        ),
        apply=_enforce_policies,
    ),
)
"""What this module corrects in ministack."""
