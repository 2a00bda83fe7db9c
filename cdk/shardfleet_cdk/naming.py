"""
Names: the fleet's own, and none for AWS resources.

Physical names are CloudFormation's, so that an account holds any number of fleets. The one name
that must begin a certain way is that of the state machine's log group.
"""

from __future__ import annotations

import re

from aws_cdk import Aws, Fn, Names
from constructs import Construct

from shardfleet.errors import ConfigurationError

# Execution names have at most 80 characters: <fleet>-<slot>-<start epoch>-<generation>.
FLEET_NAME_MOST = 40
_ALLOWED = re.compile(r"[A-Za-z0-9_-]+")


def fleet_name(scope: Construct, wanted: str | None) -> str:
    """
    Return the fleet's name: the prefix of its worker ids and execution names.

    Fleets that share a lease table need different ones; the default comes from the construct's
    path, the stack included.

    Raises:
        ConfigurationError: too long, or with characters that execution names may not have.

    """
    if wanted is None:
        return Names.unique_resource_name(scope, max_length=FLEET_NAME_MOST)
    if not _ALLOWED.fullmatch(wanted) or len(wanted) > FLEET_NAME_MOST:
        message = (
            f"fleet name {wanted!r}: 1 to {FLEET_NAME_MOST} letters, digits, hyphens and "
            "underscores are allowed"
        )
        raise ConfigurationError(message)
    return wanted


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
