"""
A table of DynamoDB that answers requests as they come over the wire: JSON in, status and JSON out.

It knows what a lease store sends: single items with conditions and updates, scans and queries in
pages. What an expression means is DynamoDB's (Developer Guide, "Expressions"), and nothing of it is
taken from the domain: a request that says something else than was meant is found by what it does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from operator import eq, ge, gt, le, lt, ne
from typing import Any

# As in an answer: attribute name to type and value, e.g. {"leaseCounter": {"N": "7"}}.
Item = dict[str, dict[str, Any]]

_TOKEN = re.compile(r"\s*([#:]?\w+|<>|<=|>=|[=<>(),])")
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": eq,
    "<>": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}
_EXISTENCE = {"attribute_exists": True, "attribute_not_exists": False}
_CLAUSES = ("SET", "ADD", "REMOVE")


class Refusal(Exception):
    """
    An answer with status 400.

    Attributes:
        body: of the answer.

    """

    def __init__(self, code: str, text: str, **members: object) -> None:
        """Refuse with a code of DynamoDB's."""
        super().__init__(text)
        self.body: dict[str, object] = {
            "__type": f"com.amazonaws.dynamodb.v20120810#{code}",
            "message": text,
            **members,
        }


class _Expression:
    """One expression of a request, read from left to right."""

    def __init__(self, text: str, request: Mapping[str, Any], item: Item) -> None:
        self._tokens: list[str] = _TOKEN.findall(text)
        if not text or "".join(self._tokens) != re.sub(r"\s+", "", text):
            raise Refusal("ValidationException", f"Invalid expression: {text}")
        self._names: Mapping[str, str] = request.get("ExpressionAttributeNames", {})
        self._values: Mapping[str, dict[str, Any]] = request.get("ExpressionAttributeValues", {})
        self._item = item

    def _next(self, *wanted: str) -> bool:
        """Take the next token if it is one of those."""
        if self._tokens and self._tokens[0] in wanted:
            self._tokens.pop(0)
            return True
        return False

    def _any_token(self) -> str:
        if not self._tokens:
            raise Refusal("ValidationException", "Syntax error at the end")
        return self._tokens.pop(0)

    def _expect(self, token: str) -> None:
        if not self._next(token):
            raise Refusal("ValidationException", f"Syntax error; {token} expected")

    def condition(self) -> bool:
        """Evaluate all of it."""
        holds = self._any()
        if self._tokens:
            raise Refusal("ValidationException", f"Syntax error at {self._tokens[0]}")
        return holds

    def _any(self) -> bool:
        holds = self._all()
        while self._next("OR"):
            holds = self._all() or holds
        return holds

    def _all(self) -> bool:
        holds = self._term()
        while self._next("AND"):
            holds = self._term() and holds
        return holds

    def _term(self) -> bool:
        if self._next("("):
            holds = self._any()
            self._expect(")")
            return holds
        for function, is_wanted in _EXISTENCE.items():
            if self._next(function):
                self._expect("(")
                found = self._name() in self._item
                self._expect(")")
                return found is is_wanted
        left = self._operand()
        if self._next("IN"):
            self._expect("(")
            choices = [self._operand()]
            while self._next(","):
                choices.append(self._operand())
            self._expect(")")
            return left in choices
        compare = _COMPARED.get(self._any_token())
        if compare is None:
            raise Refusal("ValidationException", "Syntax error; a comparison expected")
        right = self._operand()
        if left is None or right is None or left[0] != right[0]:
            return compare is ne
        return compare(left[1], right[1])

    def _name(self) -> str:
        token = self._any_token()
        return self._names[token] if token.startswith("#") else token

    def _operand(self) -> tuple[str, Any] | None:
        """Return type and value of an attribute, of a value of the request, or a size."""
        if self._next("size"):
            self._expect("(")
            name = self._name()
            self._expect(")")
            return ("N", Decimal(len(self._item[name]["S"]))) if name in self._item else None
        typed = self._typed()
        if typed is None:
            return None
        ((kind, value),) = typed.items()
        if kind == "N":
            return kind, Decimal(value)
        return kind, frozenset(value) if kind == "SS" else value

    def _typed(self) -> dict[str, Any] | None:
        if self._tokens and self._tokens[0].startswith(":"):
            return self._value()
        return self._item.get(self._name())

    def _value(self) -> dict[str, Any]:
        return self._values[self._any_token()]

    def updated(self) -> Item:
        """Return the item as an update expression leaves it."""
        item = dict(self._item)
        clause = ""
        while self._tokens:
            if self._tokens[0] in _CLAUSES:
                clause = self._tokens.pop(0)
            else:
                self._expect(",")
            name = self._name()
            if clause == "REMOVE":
                item.pop(name, None)
                continue
            if clause == "SET":
                self._expect("=")
            value = self._value()
            item[name] = value if clause == "SET" else _sum(item.get(name, {"N": "0"}), value)
        return item


def _sum(stored: Mapping[str, str], amount: Mapping[str, str]) -> dict[str, str]:
    if "N" not in stored:
        text = "An operand in the update expression has an incorrect data type"
        raise Refusal("ValidationException", text)
    return {"N": str(Decimal(stored["N"]) + Decimal(amount["N"]))}


class ItemTable:
    """
    A table whose items have one key attribute.

    Attributes:
        items: by key, in the order in which a scan meets them.
        page_items: tells how many items the next page may have, at least one.

    """

    def __init__(self, key: str, *, page_items: Callable[[], int]) -> None:
        """Begin empty."""
        self.items: dict[str, Item] = {}
        self.page_items = page_items
        self._key = key

    def answer(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """
        Carry out one request.

        Raises:
            Refusal: a condition does not hold, or the request cannot be understood.

        """
        match operation:
            case "Scan" | "Query":
                return self._page(request)
            case "GetItem":
                item = self.items.get(request["Key"][self._key]["S"])
                return {} if item is None else {"Item": item}
            case "PutItem" | "UpdateItem" | "DeleteItem":
                return self._written(operation, request)
            case _:
                raise Refusal("UnknownOperationException", operation)

    def _written(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        whole = request["Item"] if operation == "PutItem" else request["Key"]
        key = whole[self._key]["S"]
        stored = self.items.get(key)
        known = stored or {}
        if not _Expression(request["ConditionExpression"], request, known).condition():
            members = {} if stored is None else {"Item": stored}
            text = "The conditional request failed"
            raise Refusal("ConditionalCheckFailedException", text, **members)
        if operation == "DeleteItem":
            return {"Attributes": self.items.pop(key, {})}
        if operation == "PutItem":
            self.items[key] = whole
            return {}
        update = _Expression(request["UpdateExpression"], request, known | whole)
        self.items[key] = update.updated()
        return {"Attributes": self.items[key]}

    def _page(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the next items that are asked for, and where to go on if there are more."""
        wanted = request.get("KeyConditionExpression")
        found = [
            item
            for item in self.items.values()
            if wanted is None or _Expression(wanted, request, item).condition()
        ]
        begun = request.get("ExclusiveStartKey")
        if begun is not None:
            found = found[_place_of(begun[self._key], (item[self._key] for item in found)) :]
        page, rest = found[: (most := self.page_items())], found[most:]
        answer: dict[str, Any] = {"Items": page, "Count": len(page), "ScannedCount": len(page)}
        if rest:
            # An index of keys only has nothing else in its items than what its place is told by.
            is_index = "IndexName" in request
            last = page[-1]
            answer["LastEvaluatedKey"] = last if is_index else {self._key: last[self._key]}
        return answer


def _place_of(key: object, keys: Iterable[object]) -> int:
    """Return where to go on behind a key."""
    return next(number for number, each in enumerate(keys, 1) if each == key)
