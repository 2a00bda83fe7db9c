"""
Access keys in the embedded AWS: all of them drawn, and none that opens it by being well known.

ministack takes `test`, twelve digits or no key at all for the account's root, gives a function the
same session keys in every run, and draws 60 bits of a key id.
"""

import os
from collections.abc import Mapping
from typing import Any

from ministack.core import iam_evaluator, lambda_runtime
from ministack.services import iam, sts

from shardfleet_local.access import AccessKey, drawn_key_id, drawn_secret
from shardfleet_local.aws.patches import Patch
from shardfleet_local.aws.settings import ServerSettings

_FUNCTION = "shardfleet.function"
"""Whose session it is, in what is kept of a session."""


def is_issued(account_id: str, key_id: str) -> bool:
    """Return whether STS or IAM of this account has given this access key id out."""
    known = key_id in sts._sessions
    return known or iam._access_keys.get_scoped(account_id, None, key_id) is not None


def _draw_keys(settings: ServerSettings) -> None:
    root = AccessKey(settings.access_key_id, settings.secret_access_key)
    os.environ.update(root.environment())  # Now, so that it is not in what the process began with.
    iam_evaluator.is_root_access_key = lambda key_id: key_id == root.id
    iam._gen_access_key_id = drawn_key_id
    iam._gen_session_access_key = sts._gen_session_access_key = lambda: drawn_key_id("ASIA")

    def execution_credentials(config: Mapping[str, Any]) -> dict[str, str]:
        if not settings.enforce_iam:
            return root.environment()
        session = AccessKey(drawn_key_id("ASIA"))
        role, token = str(config.get("Role", "")).rpartition("/")[2], drawn_secret()
        name = str(config.get("FunctionName", "function"))[:64]
        arn = f"arn:aws:sts::{settings.account_id}:assumed-role/{role}/{name}"
        sts.register_session(
            session.id,
            {
                "Arn": arn,
                "UserId": f"{role}:{name}",
                _FUNCTION: config.get("FunctionArn", ""),
                "SecretAccessKey": session.secret,
                "SessionToken": token,
            },
        )
        return {**session.environment(), "AWS_SESSION_TOKEN": token}

    lambda_runtime.execution_credentials = execution_credentials


def _tell_functions_calls(_: ServerSettings) -> None:
    stock = iam_evaluator._principal_keys

    def keys_of(credential: iam_evaluator.ResolvedCredential) -> dict[str, Any]:
        session = sts._sessions.get(credential.access_key_id) or {}
        own = {"lambda:sourcefunctionarn": session[_FUNCTION]} if _FUNCTION in session else {}
        return {**stock(credential), **own}

    iam_evaluator._principal_keys = keys_of


PATCHES = (
    Patch(
        gap="Well-known access keys are the account's root, and a function's keys can be computed",
        touches=(
            "ministack.core.iam_evaluator:is_root_access_key",
            "ministack.core.lambda_runtime:execution_credentials",
            "ministack.services.iam:_access_keys.get_scoped",
            "ministack.services.iam:_gen_access_key_id",
            "ministack.services.iam:_gen_session_access_key",
            "ministack.services.sts:_gen_session_access_key",
            "ministack.services.sts:_sessions",
            "ministack.services.sts:register_session",
        ),
        apply=_draw_keys,
    ),
    Patch(
        gap="With IAM enforced, a policy cannot tell what a function's code calls (fact I14)",
        touches=(
            "ministack.core.iam_evaluator:ResolvedCredential",
            "ministack.core.iam_evaluator:_principal_keys",
            "ministack.services.sts:_sessions",
        ),
        apply=_tell_functions_calls,
    ),
)
"""What this module corrects in ministack."""
