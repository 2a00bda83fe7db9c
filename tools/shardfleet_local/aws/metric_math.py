"""
CloudWatch metric math: expressions over time series (CloudWatch user guide, "Using metric math").

Supported: numbers, ids, arithmetic (`+ - * / ^`), comparisons, `AND`, `OR`, arrays in brackets, and
the functions in FUNCTIONS. A series maps the start of a period (epoch seconds) to a value; a point
that is missing on one side of an operator is missing in the result.
"""

import itertools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

Series = dict[int, float]
Value = float | Series | list[Series]
Arguments = list[Any]

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)
    |(?P<string>"[^"]*"|'[^']*')|(?P<sign>==|!=|<=|>=|&&|\|\||[-+*/^()<>,\[\]]))""",
    re.VERBOSE,
)

_LEVELS: tuple[tuple[str, ...], ...] = (
    ("OR", "||"),
    ("AND", "&&"),
    ("==", "!=", "<", "<=", ">", ">="),
    ("+", "-"),
    ("*", "/"),
    ("^",),
)
"""Binary operators, the loosest first."""


def _quotient(left: float, right: float) -> float | None:
    return left / right if right else None


_OPERATORS: dict[str, Callable[[float, float], float | None]] = {
    "OR": lambda left, right: float(bool(left) or bool(right)),
    "AND": lambda left, right: float(bool(left) and bool(right)),
    "==": lambda left, right: float(left == right),
    "!=": lambda left, right: float(left != right),
    "<": lambda left, right: float(left < right),
    "<=": lambda left, right: float(left <= right),
    ">": lambda left, right: float(left > right),
    ">=": lambda left, right: float(left >= right),
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "^": operator.pow,
}
_OPERATORS["||"], _OPERATORS["&&"] = _OPERATORS["OR"], _OPERATORS["AND"]


class MetricMathError(ValueError):
    """An expression cannot be read, or uses what is not supported; the message says where."""


@dataclass(frozen=True, kw_only=True)
class MetricScope:
    """
    What an expression may refer to.

    `values` are the series by id, `grid` the starts of all periods asked for (seconds, ascending),
    `metrics` the series of the queries that are plain metrics, in order: what METRICS() returns,
    by id.
    """

    values: Mapping[str, Value]
    grid: Sequence[int]
    metrics: Mapping[str, Series]


def evaluate(expression: str, scope: MetricScope) -> Value:
    """Evaluate an expression. Raises MetricMathError."""
    parser = _Parser(_tokens(expression), expression, scope)
    value = parser.level(0)
    parser.expect_end()
    return value


def as_series(value: Value, grid: Sequence[int]) -> list[Series]:
    """Return a value as time series: a number is that number in every period."""
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        return [value]
    return [dict.fromkeys(grid, value)]


def _tokens(expression: str) -> list[str]:
    found, position = [], 0
    text = expression.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise MetricMathError(
                f"'{expression}': cannot read '{text[position:].strip()}'"
            )  # fact C30
        found.append(match.group().strip())
        position = match.end()
    return found


class _Parser:
    """A recursive-descent parser that evaluates as it reads."""

    def __init__(self, tokens: list[str], expression: str, scope: MetricScope) -> None:
        self._tokens = tokens
        self._expression = expression
        self._scope = scope
        self._next = 0

    def level(self, depth: int) -> Value:
        """Read operands joined by the operators of one level."""
        if depth == len(_LEVELS):
            return self._operand()
        value = self.level(depth + 1)
        while self._peek() in _LEVELS[depth]:
            sign = self._take()
            value = _combined(_OPERATORS[sign], value, self.level(depth + 1))
        return value

    def expect_end(self) -> None:
        """Raise unless everything has been read."""
        if self._peek():
            raise self._failure(f"'{self._peek()}' is too much")  # fact C30

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self, wanted: str = "") -> str:
        token = self._peek()
        if not token or (wanted and token != wanted):
            raise self._failure(
                f"'{wanted or 'a value'}' was expected, not '{token or 'the end'}'"
            )  # fact C30
        self._next += 1
        return token

    def _failure(self, what: str) -> MetricMathError:
        return MetricMathError(f"'{self._expression}': {what}")

    def _operand(self) -> Value:
        word = self._take()
        if word == "(":
            value = self.level(0)
            self._take(")")
            return value
        if word == "-":
            return _combined(operator.mul, -1.0, self._operand())
        if word == "[":
            return [series for value in self._list("]") for series in self._series(value)]
        if word[0].isdigit():
            return float(word)
        if self._peek() == "(":
            return self._call(word)
        if word in self._scope.values:
            return self._scope.values[word]
        raise self._failure(f"'{word}' is no id of a query")  # fact C30

    def _call(self, name: str) -> Value:
        self._take("(")
        function = FUNCTIONS.get(name.upper())
        if function is None:
            known = ", ".join(sorted(FUNCTIONS))
            raise self._failure(
                f"{name}() is not supported here; supported are {known}"
            )  # fact C03, C30
        arguments = self._list(")")
        try:
            return function(self._scope, arguments)
        except (TypeError, ValueError, IndexError, AttributeError) as error:
            raise self._failure(f"{name}(): wrong arguments ({error})") from error  # fact C30

    def _list(self, closing: str) -> Arguments:
        found: Arguments = []
        while self._peek() != closing:
            if self._peek()[:1] in ("'", '"'):
                found.append(self._take()[1:-1])
            elif self._peek() in ("REPEAT", "LINEAR"):
                found.append(self._take())
            else:
                found.append(self.level(0))
            if self._peek() == ",":
                self._take(",")
        self._take(closing)
        return found

    def _series(self, value: Value) -> list[Series]:
        return as_series(value, self._scope.grid)


def _combined(apply: Callable[[float, float], float | None], left: Value, right: Value) -> Value:
    if isinstance(left, list):
        return [cast("Series", _combined(apply, each, right)) for each in left]
    if isinstance(right, list):
        return [cast("Series", _combined(apply, left, each)) for each in right]
    if not isinstance(left, dict) and not isinstance(right, dict):
        result = apply(left, right)
        return float("nan") if result is None else result
    moments = [side for side in (left, right) if isinstance(side, dict)]
    common = sorted(set(moments[0]).intersection(*moments))
    points = {at: apply(_at(left, at), _at(right, at)) for at in common}
    return {at: value for at, value in points.items() if value is not None}


def _at(value: float | Series, moment: int) -> float:
    return value[moment] if isinstance(value, dict) else value


def _aggregate(reduce: Callable[[list[float]], float]) -> Callable[[MetricScope, Arguments], Value]:
    def function(_: MetricScope, arguments: Arguments) -> Value:
        (value,) = arguments
        if isinstance(value, dict):
            return reduce(list(value.values())) if value else float("nan")
        moments = sorted({at for series in value for at in series})
        return {at: reduce([series[at] for series in value if at in series]) for at in moments}

    return function


def _each_point(change: Callable[[float], float]) -> Callable[[MetricScope, Arguments], Value]:
    def function(_: MetricScope, arguments: Arguments) -> Value:
        (value,) = arguments
        if isinstance(value, list):
            return [{at: change(each) for at, each in series.items()} for series in value]
        if isinstance(value, dict):
            return {at: change(each) for at, each in value.items()}
        return change(value)

    return function


def _if(scope: MetricScope, arguments: Arguments) -> Value:
    condition, then, *rest = arguments
    if not isinstance(condition, dict):
        if condition:
            return cast("Value", then)
        return cast("Value", rest[0]) if rest else {}
    chosen: Series = {}
    for at in scope.grid:
        if at not in condition:
            continue
        source = then if condition[at] else (rest[0] if rest else {})
        if not isinstance(source, dict):
            chosen[at] = source
        elif at in source:
            chosen[at] = source[at]
    return chosen


def _fill(scope: MetricScope, arguments: Arguments) -> Value:
    value, filler = arguments
    if isinstance(value, list):
        return [cast("Series", _fill(scope, [series, filler])) for series in value]
    filled: Series = {}
    for at in scope.grid:
        found = value.get(at)
        if found is None:
            found = _filler_at(value, filler, at)
        if found is not None:
            filled[at] = found
    return filled


def _filler_at(series: Series, filler: Any, moment: int) -> float | None:
    before = max((at for at in series if at < moment), default=None)
    after = min((at for at in series if at > moment), default=None)
    if filler == "REPEAT":
        return None if before is None else series[before]
    if filler == "LINEAR":
        if before is None or after is None:
            return None
        share = (moment - before) / (after - before)
        return series[before] + share * (series[after] - series[before])
    return filler.get(moment) if isinstance(filler, dict) else float(filler)


def _metrics(scope: MetricScope, arguments: Arguments) -> Value:
    wanted = arguments[0] if arguments else ""
    return [series for key, series in scope.metrics.items() if wanted in key]


def _rate(_: MetricScope, arguments: Arguments) -> Value:
    (series,) = arguments
    moments = sorted(series)
    return {
        at: (series[at] - series[before]) / (at - before)
        for before, at in itertools.pairwise(moments)
    }


def _diff(_: MetricScope, arguments: Arguments) -> Value:
    (series,) = arguments
    moments = sorted(series)
    return {at: series[at] - series[before] for before, at in itertools.pairwise(moments)}


def _running_sum(_: MetricScope, arguments: Arguments) -> Value:
    (series,) = arguments
    total, sums = 0.0, {}
    for at in sorted(series):
        total += series[at]
        sums[at] = total
    return sums


def _period(scope: MetricScope, _: Arguments) -> Value:
    return float(scope.grid[1] - scope.grid[0])


FUNCTIONS: dict[str, Callable[[MetricScope, Arguments], Value]] = {
    "ABS": _each_point(abs),
    "AVG": _aggregate(lambda values: sum(values) / len(values)),
    "CEIL": _each_point(lambda value: float(-(-value // 1))),
    "DIFF": _diff,
    "FILL": _fill,
    "FLOOR": _each_point(lambda value: float(value // 1)),
    "IF": _if,
    "MAX": _aggregate(max),
    "METRICS": _metrics,
    "MIN": _aggregate(min),
    "PERIOD": _period,
    "RATE": _rate,
    "RUNNING_SUM": _running_sum,
    "SUM": _aggregate(sum),
    "TIME_SERIES": lambda scope, arguments: as_series(arguments[0], scope.grid)[0],
}
"""The functions that expressions may call."""
