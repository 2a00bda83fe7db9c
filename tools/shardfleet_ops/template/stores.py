"""What a template keeps: tables, keys and logs, and what stays when a deploy fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardfleet_ops.template.reading import (
    Template,
    TemplateFault,
    TemplateResource,
    listed,
    spelled,
    variables_of,
)

OWNER_INDEX = "LeaseOwnerToLeaseKeyIndex"  # protocol.md §1.3
_TABLE_VARIABLE = "SHARDFLEET_LEASE_TABLE"  # As FleetConfig.to_env names it.
_NEEDED_BY_LOGS = ("kms:Encrypt", "kms:Decrypt", "kms:GenerateDataKey")
# Nothing is paid for these, and they go with their function.
_FREE = ("AWS::Lambda::Version", "AWS::Lambda::LayerVersion")


def keys_closed_to_logs(template: Template) -> Iterator[TemplateFault]:
    """A2: a log group's key must admit CloudWatch Logs, or the group is not made."""
    for group in template.resources("AWS::Logs::LogGroup"):
        key = template.referenced(group.properties.get("KmsKeyId"))
        if key is None or key.kind != "AWS::KMS::Key" or _admits_logs(key):
            continue
        yield TemplateFault(
            certain=True,
            fact="A2",
            where=group.path,
            found=f"the policy of its key {key.path} does not admit CloudWatch Logs",
            allowed="a key that logs.<region>.<suffix> may encrypt and decrypt with",
            remedy="allow that service Encrypt*, Decrypt*, ReEncrypt*, GenerateDataKey* and "
            "Describe* in the key's policy",
        )


def _admits_logs(key: TemplateResource) -> bool:
    policy = key.properties.get("KeyPolicy") or {}
    return any(_lets_logs(statement) for statement in listed(policy.get("Statement")))


def _lets_logs(statement: dict[str, Any]) -> bool:
    principal = statement.get("Principal")
    services = listed(principal.get("Service")) if isinstance(principal, dict) else ()
    allowed = [str(action) for action in listed(statement.get("Action"))]
    return (
        statement.get("Effect") == "Allow"
        and any(spelled(each).startswith("logs.") for each in services)
        and all(any(_covers(action, needed) for action in allowed) for needed in _NEEDED_BY_LOGS)
    )


def _covers(action: str, needed: str) -> bool:
    return action == needed or (action.endswith("*") and needed.startswith(action[:-1]))


def lease_tables_without_index(template: Template) -> Iterator[TemplateFault]:
    """J5: a worker finds its leases by the KCL's index of owners."""
    asked = {
        table.logical_id: table
        for function in template.resources("AWS::Lambda::Function")
        if (table := template.referenced(variables_of(function).get(_TABLE_VARIABLE)))
    }
    for table in asked.values():
        indexes = listed(table.properties.get("GlobalSecondaryIndexes"))
        if OWNER_INDEX not in {each.get("IndexName") for each in indexes}:
            yield TemplateFault(
                certain=True,
                fact="J5",
                where=table.path,
                found=f"a lease table without the index {OWNER_INDEX}",
                allowed="workers ask that index which leases are theirs",
                remedy="add it as the KCL does: the owner as key, the lease's key beside it, "
                "keys only",
            )


def leaks(template: Template) -> Iterator[TemplateFault]:
    """A16: what is retained stays, and costs, when the deploy that made it fails."""
    kept = [
        each
        for each in template.resources()
        if each.deletion == "Retain" and each.kind not in _FREE
    ]
    if kept:
        yield TemplateFault(
            certain=False,
            fact="A16",
            where=", ".join(each.path for each in kept),
            found="DeletionPolicy Retain, also when the deploy that makes it fails: each attempt "
            "leaves one behind",
            allowed="RetainExceptOnCreate retains from the first deploy that succeeds",
            remedy="RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE in the CDK",
        )
