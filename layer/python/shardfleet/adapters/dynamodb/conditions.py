"""
A lease change as one DynamoDB request: the data of the domain compiled into expressions.

Nothing is decided here. What a condition means is said once, by
:func:`shardfleet.domain.leases.changes.holds`; the compiled expressions are tested against it.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from shardfleet.adapters.dynamodb.items import (
    ATTRIBUTES,
    CHECKPOINT,
    CHECKPOINT_SUB,
    Attribute,
    attributes_of,
    item_from_fields,
    key_of,
)
from shardfleet.domain.leases.lease import (
    ChangeKind,
    CheckpointNotPast,
    Condition,
    FieldAbsent,
    FieldEquals,
    FieldPresent,
    LeaseChange,
    LeaseField,
)
from shardfleet.domain.stream.sequence import (
    AT_TIMESTAMP,
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    ExtendedSequenceNumber,
)

_EXISTS = FieldPresent(LeaseField.LEASE_KEY)
_BEGINNINGS = (TRIM_HORIZON, LATEST, AT_TIMESTAMP)


class Placeholders(Struct):
    """
    Names and values of one request, so that no reserved word and no literal is in its text.

    Attributes:
        names: ``ExpressionAttributeNames``.
        values: ``ExpressionAttributeValues``.

    """

    names: dict[str, str] = field(default_factory=dict)
    values: dict[str, dict[str, Any]] = field(default_factory=dict)

    def name(self, attribute: str) -> str:
        """Return the placeholder of an attribute's name."""
        placeholder = f"#{attribute}"
        self.names[placeholder] = attribute
        return placeholder

    def value(self, typed: dict[str, Any]) -> str:
        """Return a placeholder for a value such as ``{"N": "7"}``."""
        for placeholder, known in self.values.items():
            if known == typed:
                return placeholder
        placeholder = f":v{len(self.values)}"
        self.values[placeholder] = typed
        return placeholder

    def arguments(self) -> dict[str, Any]:
        """Return the request members; DynamoDB refuses empty ones."""
        found = {
            "ExpressionAttributeNames": self.names,
            "ExpressionAttributeValues": self.values,
        }
        return {name: members for name, members in found.items() if members}


def request_of(change: LeaseChange, table: str) -> dict[str, Any]:
    """
    Return the arguments of the ``put_item``, ``update_item`` or ``delete_item`` that it is.

    The stored item comes back when a condition fails, so that nobody has to read it again.
    """
    use = Placeholders()
    request: dict[str, Any] = {
        "TableName": table,
        "ConditionExpression": " AND ".join(_conditions(change, use)),
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    match change.kind:
        case ChangeKind.PUT:
            request |= {"Item": item_from_fields(change.sets)}
        case ChangeKind.UPDATE:
            request |= {
                "Key": key_of(change.lease_key),
                "UpdateExpression": _update(change, use),
                "ReturnValues": "ALL_NEW",
            }
        case ChangeKind.DELETE:
            request |= {"Key": key_of(change.lease_key), "ReturnValues": "ALL_OLD"}
    return request | use.arguments()


def _conditions(change: LeaseChange, use: Placeholders) -> list[str]:
    terms = [_condition(condition, use) for condition in change.conditions]
    if change.kind is not ChangeKind.PUT and _EXISTS not in change.conditions:
        # protocol.md §0.2: an update must never bring a deleted lease back to half a life.
        terms.append(_condition(_EXISTS, use))
    return terms


def _condition(condition: Condition, use: Placeholders) -> str:
    match condition:
        case FieldEquals(name, value):
            written = attributes_of(name, value)
            return " AND ".join(_equals(use, a, typed=written[a.name]) for a in ATTRIBUTES[name])
        case FieldAbsent(name):
            return f"attribute_not_exists({use.name(ATTRIBUTES[name][0].name)})"
        case FieldPresent(name):
            return f"attribute_exists({use.name(ATTRIBUTES[name][0].name)})"
        case CheckpointNotPast(checkpoint):
            return _not_past(checkpoint, use)


def _equals(use: Placeholders, attribute: Attribute, *, typed: dict[str, Any]) -> str:
    name = use.name(attribute.name)
    equal = f"{name} = {use.value(typed)}"
    if attribute.missing_is_zero and typed == {"N": "0"}:
        return f"({equal} OR attribute_not_exists({name}))"
    return equal


def _not_past(checkpoint: ExtendedSequenceNumber, use: Placeholders) -> str:
    """Compile the monotonic guard of hazard H8; decimal strings are compared by length first."""
    stored = use.name(CHECKPOINT)
    end = use.value({"S": SHARD_END})
    if checkpoint.is_shard_end:
        # "<>" also holds on a missing attribute, hence the first term.
        return f"(attribute_exists({stored}) AND {stored} <> {end})"
    beginning = f"{stored} IN ({', '.join(use.value({'S': word}) for word in _BEGINNINGS)})"
    if checkpoint.is_sentinel:
        return f"({stored} <> {end} AND {beginning})"
    number = use.value({"S": checkpoint.sequence_number})
    length = use.value({"N": str(len(checkpoint.sequence_number))})
    sub = use.name(CHECKPOINT_SUB)
    sub_value = use.value({"N": str(checkpoint.sub_sequence_number)})
    return (
        f"({stored} <> {end} AND ({beginning}"
        f" OR size({stored}) < {length}"
        f" OR (size({stored}) = {length} AND {stored} < {number})"
        f" OR ({stored} = {number} AND"
        f" ({sub} <= {sub_value} OR attribute_not_exists({sub})))))"
    )


def _update(change: LeaseChange, use: Placeholders) -> str:
    sets: list[str] = []
    removes = [a.name for name in change.removes for a in ATTRIBUTES[name]]
    for name, value in change.sets.items():
        written = attributes_of(name, value)
        sets += [f"{use.name(attribute)} = {use.value(t)}" for attribute, t in written.items()]
        removes += [a.name for a in ATTRIBUTES[name] if a.name not in written]
    adds = [
        f"{use.name(ATTRIBUTES[name][0].name)} {use.value({'N': str(amount)})}"
        for name, amount in change.adds.items()
    ]
    clauses = {"SET": sets, "ADD": adds, "REMOVE": [use.name(name) for name in removes]}
    return " ".join(f"{verb} {', '.join(terms)}" for verb, terms in clauses.items() if terms)
