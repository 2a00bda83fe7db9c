"""What policies ask of a request: TLS, for which HTTP on loopback stands, leading keys, streams."""

import json

import cbor2
from ministack.core import iam_actions, iam_evaluator
from ministack.services import dynamodb

from shardfleet_local.aws.patches import Patch
from shardfleet_local.aws.settings import ServerSettings


def _count_loopback_as_tls(_: ServerSettings) -> None:
    stock = iam_evaluator._resolve_condition_key

    def resolve(key: str, ctx: iam_evaluator.EvalContext) -> object:
        return "true" if key.lower() == "aws:securetransport" else stock(key, ctx)

    iam_evaluator._resolve_condition_key = resolve


def _tell_leading_keys(_: ServerSettings) -> None:
    stock = iam_actions.dynamodb_service_context

    def context_of(body: bytes) -> dict[str, object]:
        found: dict[str, object] = stock(body)
        if not found:
            return found  # No request that is understood.
        request = json.loads(body)
        table = dynamodb._tables.get(str(request.get("TableName")).rpartition("/")[2])
        keys = request.get("Key") or request.get("Item")
        if table and isinstance(keys, dict) and table["pk_name"] in keys:
            found["dynamodb:LeadingKeys"] = [*keys[table["pk_name"]].values()]
        return found

    iam_actions.dynamodb_service_context = context_of


def _read_cbor(_: ServerSettings) -> None:
    stock = iam_actions._safe_json_field

    def field(body: bytes, name: str) -> str:
        try:
            found: str = stock(body, name)
        except UnicodeDecodeError:  # No JSON; Kinesis takes CBOR, too.
            try:
                return str(cbor2.loads(body).get(name, ""))
            except (cbor2.CBORDecodeError, AttributeError):
                return ""
        return found

    iam_actions._safe_json_field = field


PATCHES = (
    Patch(
        gap="With IAM enforced, a request in CBOR fails inside: whose stream it is about is unread",
        touches=("ministack.core.iam_actions:_safe_json_field",),
        apply=_read_cbor,
    ),
    Patch(
        gap="With IAM enforced, a queue or bucket that takes TLS only refuses everything",
        touches=(
            "ministack.core.iam_evaluator:_resolve_condition_key",
            "ministack.core.iam_evaluator:EvalContext",
        ),
        apply=_count_loopback_as_tls,
    ),
    Patch(
        gap="With IAM enforced, a right to items of some partition keys is one to all items",
        touches=(
            "ministack.core.iam_actions:dynamodb_service_context",
            "ministack.services.dynamodb:_tables",
        ),
        apply=_tell_leading_keys,
    ),
)
"""What this module corrects in ministack."""
