"""The embedded AWS speaks HTTP on loopback, which stands for TLS in policies that want TLS."""

from ministack.core import iam_evaluator

from shardfleet.local.aws.patches import Patch
from shardfleet.local.aws.settings import ServerSettings


def _count_loopback_as_tls(_: ServerSettings) -> None:
    stock = iam_evaluator._resolve_condition_key

    def resolve(key: str, ctx: iam_evaluator.EvalContext) -> object:
        return "true" if key.lower() == "aws:securetransport" else stock(key, ctx)

    iam_evaluator._resolve_condition_key = resolve


PATCHES = (
    Patch(
        gap="With IAM enforced, a queue or bucket that takes TLS only refuses everything",
        touches=(
            "ministack.core.iam_evaluator:_resolve_condition_key",
            "ministack.core.iam_evaluator:EvalContext",
        ),
        apply=_count_loopback_as_tls,
    ),
)
"""What this module corrects in ministack."""
