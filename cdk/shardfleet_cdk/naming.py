"""
Names: the fleet's own, and none for AWS resources.

Physical names are CloudFormation's, so that an account holds any number of fleets. The one name
that must begin a certain way is that of the state machine's log group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from aws_cdk import Aws, Fn, Names, Stack
from constructs import Construct

from shardfleet.errors import ConfigurationError

# Execution names have at most 80 characters: <fleet>-<slot>-<start epoch>-<generation>.
FLEET_NAME_MOST = 40
_ALLOWED = re.compile(r"[A-Za-z0-9_-]+")
_OTHERS = re.compile(r"[^a-z0-9]+")
_HASH = 8  # Characters of what keeps two long paths apart.


def fleet_name(scope: Construct, wanted: str | None) -> str:
    """
    Return the fleet's name: the prefix of its worker ids and execution names.

    The default is the construct's path in short: of `Clicks/Fleet` it is `clicks`, of `Shop/Orders`
    `shop-orders`. Metrics and commands know a fleet by it, so that no two of a stack may share one.

    Raises:
        ConfigurationError: too long, with characters that execution names may not have, or
            another fleet's of this stack.

    """
    name = _in_short(scope) if wanted is None else _allowed(wanted)
    taken = f"FleetName-{name}"
    stack = Stack.of(scope)
    if stack.node.try_find_child(taken):
        raise ConfigurationError(
            f"fleet name {name!r}: another fleet of this stack has it; give one of them a `name`"
        )
    Construct(stack, taken)
    return name


def _allowed(wanted: str) -> str:
    if not _ALLOWED.fullmatch(wanted) or len(wanted) > FLEET_NAME_MOST:
        message = (
            f"fleet name {wanted!r}: 1 to {FLEET_NAME_MOST} letters, digits, hyphens and "
            "underscores are allowed"
        )
        raise ConfigurationError(message)
    return wanted


def _in_short(scope: Construct) -> str:
    name = "-".join(_words(scope.node.path.split("/")))
    if len(name) <= FLEET_NAME_MOST:
        return name
    unique = Names.unique_resource_name(scope, max_length=FLEET_NAME_MOST)[-_HASH:].lower()
    return f"{name[: FLEET_NAME_MOST - _HASH - 1].rstrip('-')}-{unique}"


def _words(path: list[str]) -> Iterable[str]:
    """Yield a path's words in lower case, without those that only say: a stack, a fleet."""
    *others, last = [_OTHERS.sub("-", part.lower()).strip("-") for part in path]
    yield from (part.removesuffix("stack").strip("-") or part for part in others if part)
    if last not in ("", "fleet", "shardfleet") or not any(others):
        yield last or "fleet"


def vended_log_group_name(scope: Construct) -> str:
    """
    Return a name for a state machine's log group, new with each creation of the stack.

    Step Functions adds each log group to a resource policy of limited size, except those whose
    name begins with ``/aws/vendedlogs/``; and a fixed name would collide with the group that an
    earlier stack retained. The stack's id ends in a unique part.
    """
    unique = Fn.select(2, Fn.split("/", Aws.STACK_ID))
    name = Names.unique_resource_name(scope, max_length=100)
    return f"/aws/vendedlogs/states/{name}-{unique}"
