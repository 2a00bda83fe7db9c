"""
Which records reach the handler: the pattern language of Lambda's event source mapping.

AWS Lambda developer guide, "Control which events Lambda sends to your function" (the table of
comparison operators, and that numbers are equal only as they are written) and "Using event
filtering with a Kinesis event source" (data that is no JSON is dropped where a pattern asks for
``data``); what neither says is as in AWS's Event Ruler. A record passes if one pattern matches;
within a pattern all fields must, within a field's list one rule. Where data has a list, one of its
elements must match; of a list of objects, one and the same object for the whole of its pattern.

``partitionKey`` is ours: the mapping filters Kinesis records by ``data`` alone.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, DecimalException
from typing import Any, Never

from shardfleet.errors import ConfigurationError
from shardfleet.records import Record

PATTERNS_MOST = 10
"""Lambda quota: filters of one mapping, once raised from 5."""

_FIELDS: Mapping[str, type] = {"data": dict, "partitionKey": list}
_OR = "$or"
_COMPARISONS: Mapping[object, Callable[[Decimal, Decimal], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

# Of all values that a field has, none of them an object: an absent field has none.
_Rule = Callable[[Sequence[object]], bool]
_Object = Mapping[str, Any]
_Matcher = Callable[[_Object], bool]


class _Number(str):
    """A JSON number as it is written: 300, 300.0 and 3.0e2 are different values."""

    __slots__ = ()


class RecordFilter:
    """Patterns, one of which a record must match."""

    def __init__(self, text: str) -> None:
        """
        Read patterns.

        Args:
            text: a JSON list of them; empty: every record passes.

        Raises:
            ConfigurationError: names the field that is wrong, what is allowed, and what to do.

        """
        self._matchers: list[_Matcher] = []
        self._reads_data = False
        if not text:
            return
        try:
            patterns = _json(text)
        except ValueError as error:
            message = f"filters: no JSON ({error}); a list of patterns is allowed, {_EXAMPLE}"
            raise ConfigurationError(message) from error
        if not isinstance(patterns, list) or not 1 <= len(patterns) <= PATTERNS_MOST:
            _refuse("filters", patterns, f"a list of 1 to {PATTERNS_MOST} patterns, {_EXAMPLE}")
        for index, pattern in enumerate(patterns):
            where = f"filters[{index}]"
            self._reads_data |= _asks_for_data(pattern, where)
            self._matchers.append(_object(pattern, where))

    @property
    def is_open(self) -> bool:
        """Return whether every record passes."""
        return not self._matchers

    def passes(self, record: Record) -> bool:
        """Return whether the handler is to get a record."""
        if self.is_open:
            return True
        given: dict[str, Any] = {"partitionKey": record.partition_key}
        if self._reads_data:
            try:
                given["data"] = _json(record.data.decode())
            except (ValueError, RecursionError):
                # Of no use for a pattern that asks for data; another may not.
                return any(matches(_NO_DATA | given) for matches in self._matchers)
        return any(matches(given) for matches in self._matchers)


class _NotJson:
    """What data without JSON is to a pattern: no rule holds for it, not even that of absence."""


_NO_DATA: dict[str, Any] = {"data": _NotJson()}
_EXAMPLE = 'for example [{"data": {"order": {"type": ["buy"]}}}]'
_OPERATORS = (
    "a string, a number, true, false, null, or an object with one of exists, prefix, suffix, "
    "equals-ignore-case, anything-but, numeric"
)


def _json(text: str) -> Any:
    return json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_no_constant)


def _no_constant(name: str) -> Never:
    message = f"{name} is no JSON"
    raise ValueError(message)


def _shown(found: object) -> str:
    return json.dumps(found, ensure_ascii=False)


def _refuse(where: str, found: object, allowed: str) -> Never:
    message = f"{where}: {_shown(found)[:80]} found; allowed: {allowed}"
    raise ConfigurationError(message)


def _fields_of(pattern: object, where: str) -> dict[str, Any]:
    if not isinstance(pattern, dict) or not pattern:
        _refuse(where, pattern, f"an object with at least one field, {_EXAMPLE}")
    return pattern


def _asks_for_data(pattern: object, where: str) -> bool:
    """Check the fields of a record that a pattern names; tell whether its data is one of them."""
    found = False
    for name, rule in _fields_of(pattern, where).items():
        if name == _OR:
            for at, each in enumerate(rule if isinstance(rule, list) else ()):
                found |= _asks_for_data(each, f"{where}.{name}[{at}]")
        elif name not in _FIELDS or not isinstance(rule, _FIELDS[name]):
            _refuse(
                f"{where}.{name}",
                rule,
                '"data" with an object of its fields, "partitionKey" with a list, "$or"',
            )
        found |= name == "data"
    return found


def _object(pattern: object, where: str) -> _Matcher:
    matchers = [
        _either(rule, f"{where}.{name}") if name == _OR else _field(name, rule, f"{where}.{name}")
        for name, rule in _fields_of(pattern, where).items()
    ]
    return lambda given: all(matches(given) for matches in matchers)


def _either(alternatives: object, where: str) -> _Matcher:
    if not isinstance(alternatives, list) or len(alternatives) < 2:  # noqa: PLR2004 - "or" of two
        _refuse(where, alternatives, "a list of two or more objects, of which one must match")
    matchers = [_object(each, f"{where}[{at}]") for at, each in enumerate(alternatives)]
    return lambda given: any(matches(given) for matches in matchers)


def _field(name: str, rule: object, where: str) -> _Matcher:
    if isinstance(rule, dict):
        matches = _object(rule, where)

        def in_one(given: _Object) -> bool:
            values = _values(given, name)
            if values and isinstance(values[0], _NotJson):
                return False
            return any(map(matches, [v for v in values if isinstance(v, dict)] or [{}]))

        return in_one
    if not isinstance(rule, list) or not rule:
        _refuse(where, rule, "a list of at least one value or rule, or an object of fields")
    rules = [_rule(each, f"{where}[{at}]") for at, each in enumerate(rule)]

    def of_leaves(given: _Object) -> bool:
        leaves = [value for value in _values(given, name) if not isinstance(value, dict)]
        return any(holds(leaves) for holds in rules)

    return of_leaves


def _values(given: _Object, name: str) -> Sequence[object]:
    """Return all values of a field, the elements of lists one by one."""
    if name not in given:
        return ()
    found, left = [], [given[name]]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        else:
            found.append(value)
    return found


def _rule(rule: object, where: str) -> _Rule:
    if rule is None or isinstance(rule, str | bool):
        return lambda values: any(_is_same(value, rule) for value in values)
    if not isinstance(rule, dict) or len(rule) != 1:
        _refuse(where, rule, _OPERATORS)
    ((name, given),) = rule.items()
    if name == "exists" and isinstance(given, bool):
        return lambda values: bool(values) == given
    test = _test(name, given)
    if test is None:
        _refuse(f"{where}.{name}", given, _ALLOWED.get(name, _OPERATORS))
    return lambda values: any(map(test, values))


_ALLOWED = {
    "exists": "true or false",
    "prefix": "a string",
    "suffix": "a string",
    "equals-ignore-case": "a string",
    "anything-but": "a string, a number, or a list of strings or of numbers alone",
    "numeric": '["=", number], or one or two of <, <=, >, >= with a number each: [">", 0, "<=", 5]',
}


def _test(name: str, given: Any) -> Callable[[object], bool] | None:
    """Return what an operator asks of one value; None: it does not ask with that."""
    if name == "anything-but":
        excluded = given if isinstance(given, list) else [given]
        kinds = {type(each) for each in excluded}
        if kinds not in ({str}, {_Number}):
            return None
        return lambda value: not any(_is_same(value, each) for each in excluded)
    if name == "numeric":
        return _numeric(given)
    if type(given) is not str:
        return None
    if name == "prefix":
        return lambda value: type(value) is str and value.startswith(given)
    if name == "suffix":
        return lambda value: type(value) is str and value.endswith(given)
    if name == "equals-ignore-case":
        wanted = given.lower()
        return lambda value: type(value) is str and value.lower() == wanted
    return None


def _numeric(given: object) -> Callable[[object], bool] | None:
    if not isinstance(given, list) or len(given) not in {2, 4}:
        return None
    signs, bounds = given[::2], given[1::2]
    if not all(type(sign) is str and sign in _COMPARISONS for sign in signs):
        return None
    if not all(type(bound) is _Number for bound in bounds) or ("=" in signs and len(signs) > 1):
        return None
    if len(signs) > 1 and not (signs[0].startswith(">") and signs[1].startswith("<")):
        return None  # Event Ruler: the lower bound of a range comes first.
    try:
        wanted = [(_COMPARISONS[s], Decimal(b)) for s, b in zip(signs, bounds, strict=True)]
    except DecimalException:
        return None  # An exponent beyond what can be counted.

    def holds(value: object) -> bool:
        if type(value) is not _Number:
            return False
        try:
            number = Decimal(value)
        except DecimalException:
            return False
        return all(compare(number, bound) for compare, bound in wanted)

    return holds


def _is_same(value: object, wanted: object) -> bool:
    return type(value) is type(wanted) and value == wanted
