"""
What Lambda refuses in the embedded AWS: more concurrency than the account has, reserved variables.

A new account has a concurrency of 10, not 1,000 (fact L08: awslabs/fhir-works-on-aws-deployment
issue 691), and no function may be reserved so much that less than a minimum is left to the others.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ministack.services import lambda_svc
from ministack.services.cloudformation import provisioners

from shardfleet_local.aws.lambda_environment import RESERVED
from shardfleet_local.aws.patches import Patch
from shardfleet_local.aws.settings import ServerSettings

UNRESERVED_LEAST = 100  # fact L07
"""Left to functions without a reservation; all there is where the account has less (fact L07)."""

FUNCTION = "AWS::Lambda::Function"


class Refused(ValueError):
    """InvalidParameterValueException, in Lambda's words."""


def check_variables(properties: Mapping[str, Any]) -> None:
    """Raise Refused if a function's configuration sets variables that Lambda itself sets (A6)."""
    variables = (properties.get("Environment") or {}).get("Variables") or {}
    reserved = sorted(RESERVED & set(variables))
    if reserved:
        raise Refused(  # fact L24
            "Lambda was unable to configure your environment variables because the environment "
            "variables you have provided contains reserved keys that are currently not supported "
            f"for modification. Reserved keys used in this request: {', '.join(reserved)}"
        )


def check_reservation(name: str, wanted: int, *, account: int) -> None:
    """Raise Refused if too little would be left to functions without a reservation (fact L07)."""
    least = min(UNRESERVED_LEAST, account)
    others = sum(
        int(function.get("concurrency") or 0)
        for other, function in lambda_svc._functions.items()
        if other != name
    )
    if wanted and account - others - wanted < least:
        raise Refused(  # fact L07
            "Specified ReservedConcurrentExecutions for function decreases account's "
            f"UnreservedConcurrentExecution below its minimum value of [{least}]."
        )


def _limit_the_account(settings: ServerSettings) -> None:
    lambda_svc._ACCOUNT_CONCURRENCY_CAP = settings.behaviour.account_concurrency


def _refuse_over_http(settings: ServerSettings) -> None:
    account = settings.behaviour.account_concurrency

    def refusing(stock: Callable[..., Any], check: Callable[..., None]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def call(*arguments: Any) -> Any:
            try:
                check(*arguments)
            except Refused as error:
                return lambda_svc.error_response_json(
                    "InvalidParameterValueException", str(error), 400
                )
            return stock(*arguments)

        return call

    def reservation(name: str, data: Mapping[str, Any]) -> None:
        check_reservation(name, int(data.get("ReservedConcurrentExecutions", 0)), account=account)

    lambda_svc._create_function = refusing(lambda_svc._create_function, check_variables)
    lambda_svc._update_config = refusing(
        lambda_svc._update_config, lambda _, data: check_variables(data)
    )
    lambda_svc._put_function_concurrency = refusing(
        lambda_svc._put_function_concurrency, reservation
    )


def _refuse_in_a_template(settings: ServerSettings) -> None:
    stock = provisioners._RESOURCE_HANDLERS[FUNCTION]
    account = settings.behaviour.account_concurrency

    def checked(name: str, properties: Mapping[str, Any]) -> int | None:
        check_variables(properties)
        wanted = properties.get("ReservedConcurrentExecutions")
        if wanted is None:
            return None
        check_reservation(name, int(wanted), account=account)
        return int(wanted)

    def create(logical_id: str, properties: Mapping[str, Any], stack_name: str) -> Any:
        wanted = checked("", properties)
        made = stock["create"](logical_id, properties, stack_name)
        lambda_svc._functions[made[0]]["concurrency"] = wanted
        return made

    def update(name: str, *change: Any) -> Any:
        _, new, *_ = change
        wanted = checked(name, new)
        made = stock["update"](name, *change)
        lambda_svc._functions[made[0]]["concurrency"] = wanted
        return made

    provisioners._RESOURCE_HANDLERS[FUNCTION] = {**stock, "create": create, "update": update}


_SERVICE = "ministack.services.lambda_svc:"

PATCHES = (
    Patch(
        gap="An account's concurrency is what the machine's memory allows, not what AWS gives",
        touches=(_SERVICE + "_ACCOUNT_CONCURRENCY_CAP",),
        apply=_limit_the_account,
    ),
    Patch(
        gap="Reserved variables and any reserved concurrency are accepted",
        touches=(
            *(
                _SERVICE + name
                for name in (
                    "_create_function", "_update_config", "_put_function_concurrency",
                    "_functions", "error_response_json",
                )
            ),
        ),
        apply=_refuse_over_http,
    ),
    Patch(
        gap="A template's ReservedConcurrentExecutions is ignored",
        touches=("ministack.services.cloudformation.provisioners:_RESOURCE_HANDLERS",),
        apply=_refuse_in_a_template,
    ),
)  # fmt: skip
"""What this module corrects in ministack."""
