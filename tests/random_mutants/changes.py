"""
Which small changes of a source there are: one replacement of text each, from its syntax tree.

Changed is what functions do, and the numbers that a module names. Never changed, fixed before any
run: text (messages, names, docstrings), what an exception is made from, ``__repr__`` and
``__str__``, assertions, annotations, decorators, defaults of parameters, and what else a class or a
module says outside its functions.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

_SHIFTED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
_SIGNS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "+"}
_EXTREMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SILENT = ("__repr__", "__str__")
# Statements that can be left out or change places, and leave a program.
_SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr, ast.Raise, ast.Continue, ast.Break, ast.Delete)
_Parts = tuple[str, ast.expr | ast.stmt, ast.expr | ast.stmt, str]


@dataclass(frozen=True, slots=True)
class Change:
    """
    One replacement.

    Attributes:
        id: the same for as long as file, function and both texts are, wherever they stand.
        file: path from the root.
        function: qualified name of the outermost function; "" outside of functions.
        kind: of change.
        line: of its beginning, from 1.
        start: the first byte that is replaced.
        before: what stood there.
        after: what takes its place.

    """

    id: str
    file: str
    function: str
    kind: str
    line: int
    start: int
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        """Return the source with this change."""
        return (
            source[: self.start]
            + self.after.encode()
            + source[self.start + len(self.before.encode()) :]
        )


def changes_of(file: str, source: bytes) -> list[Change]:
    """Return every change that there is of a source."""
    seen: Counter[tuple[str, ...]] = Counter()
    changes = []
    reader = _Reader(source)
    for function, (kind, first, last, after) in reader.module(ast.parse(source)):
        start = reader.begin(first)
        before = source[start : reader.end(last)].decode()
        if before == after:
            continue
        key = (file, function, kind, before, after)
        seen[key] += 1
        identity = hashlib.sha256("|".join((*key, str(seen[key]))).encode()).hexdigest()[:12]
        changes.append(Change(identity, file, function, kind, first.lineno, start, before, after))
    return changes


class _Reader:
    def __init__(self, source: bytes) -> None:
        self._source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def begin(self, node: ast.expr | ast.stmt) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr | ast.stmt) -> str:
        return self._source[self.begin(node) : self.end(node)].decode()

    def module(self, tree: ast.Module) -> Iterator[tuple[str, _Parts]]:
        for statement in tree.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                yield from (("", parts) for parts in self.number(statement.value))
            yield from self.functions(statement, "")

    def functions(self, node: ast.AST, inside: str) -> Iterator[tuple[str, _Parts]]:
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                yield from self.functions(statement, f"{inside}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in _SILENT:
            name = f"{inside}{node.name}"
            yield from ((name, parts) for parts in self.block(node.body))

    def block(self, statements: Sequence[ast.stmt]) -> Iterator[_Parts]:
        """Return the changes of some statements in a row, and of what is inside them."""
        for one, other in pairwise(statements):
            if (
                isinstance(one, _SIMPLE)
                and isinstance(other, _SIMPLE)
                and not _are_apart(one, other)
            ):
                between = self._source[self.end(one) : self.begin(other)].decode()
                yield "statements swapped", one, other, self.text(other) + between + self.text(one)
        for statement in statements:
            if (
                isinstance(statement, _SIMPLE)
                and not _is_text(statement)
                and not _is_name(statement)
            ):
                is_reset = isinstance(statement, ast.Assign) and _is_empty(statement.value)
                kind = "state not reset" if is_reset else "statement deleted"
                yield kind, statement, statement, "pass"
            yield from self.inside(statement)

    def inside(self, node: ast.AST) -> Iterator[_Parts]:
        """Return the changes of one statement or expression, and of all its parts."""
        if isinstance(node, ast.Assert | ast.JoinedStr | ast.arguments | ast.MatchValue):
            return
        for test in _tests_in(node):
            yield from self.negated(test)
        if isinstance(node, ast.expr):
            yield from self.expression(node)
        for name, part in ast.iter_fields(node):
            if isinstance(part, list) and part and isinstance(part[0], ast.stmt):
                yield from self.block(part)
            elif (name, type(node)) not in _UNTOUCHED:
                parts = part if isinstance(part, list) else [part]
                trees = (each for each in parts if isinstance(each, ast.AST))
                yield from (found for tree in trees for found in self.inside(tree))

    def negated(self, test: ast.expr) -> Iterator[_Parts]:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield "condition negated", test, test, f"({self.text(test.operand)})"
        else:
            yield "condition negated", test, test, f"(not ({self.text(test)}))"

    def expression(self, node: ast.expr) -> Iterator[_Parts]:
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _SHIFTED:
            sides = (node.left, node.comparators[0])
            yield "comparison shifted", node, node, self.joined(sides, _SHIFTED[type(node.ops[0])])
        elif isinstance(node, ast.BoolOp):
            word = "and" if isinstance(node.op, ast.Or) else "or"
            yield "and, or", node, node, self.joined(node.values, word)
        elif isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
            if not any(map(_is_text, (node.left, node.right))):
                sides = (node.left, node.right)
                yield "operator changed", node, node, self.joined(sides, _SIGNS[type(node.op)])
        elif isinstance(node, ast.Await):
            yield "await dropped", node, node, self.text(node.value)
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in _EXTREMES:
                yield "min, max", node.func, node.func, _EXTREMES[node.func.id]
            for one, other in pairwise(node.args):
                if not isinstance(one, ast.Starred) and not isinstance(other, ast.Starred):
                    after = f"{self.text(other)}, {self.text(one)}"
                    yield "arguments exchanged", one, other, after
        yield from self.number(node)

    def number(self, node: ast.expr) -> Iterator[_Parts]:
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, bool):
            yield "constant changed", node, node, str(not value)
        elif isinstance(value, int | float):
            yield "constant changed", node, node, repr(value + 1)

    def joined(self, sides: Sequence[ast.expr], word: str) -> str:
        return "(" + f" {word} ".join(f"({self.text(side)})" for side in sides) + ")"


# Fields that say nothing about what is done: of an exception only its class counts.
_UNTOUCHED = {
    ("exc", ast.Raise),
    ("annotation", ast.AnnAssign),
    ("decorator_list", ast.FunctionDef),
    ("decorator_list", ast.AsyncFunctionDef),
    ("returns", ast.FunctionDef),
    ("returns", ast.AsyncFunctionDef),
}


def _tests_in(node: ast.AST) -> list[ast.expr]:
    """Return the conditions of a statement or expression itself."""
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        return [node.test]
    return node.ifs if isinstance(node, ast.comprehension) else []


def _is_text(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        node = node.value
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | type(...))
    )


def _are_apart(one: ast.stmt, other: ast.stmt) -> bool:
    """Tell two of which the order makes no difference: texts, and values given without a call."""
    if _is_text(one) or _is_text(other):
        return True
    if not isinstance(one, ast.Assign) or not isinstance(other, ast.Assign):
        return False
    calls = (part for node in (one, other) for part in ast.walk(node) if isinstance(part, ast.Call))
    words, others = ast.unparse(one), ast.unparse(other)
    meet = ast.unparse(one.targets[0]) in others or ast.unparse(other.targets[0]) in words
    return not meet and not any(calls)


def _is_name(node: ast.stmt) -> bool:
    """Tell what gives a variable its value: without it every run fails, and nothing is learned."""
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name | ast.Tuple)


def _is_empty(node: ast.expr) -> bool:
    """Tell a value that something is set back to: nothing, a number, an empty collection."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and not node.args and not node.keywords
    elements = getattr(node, "elts", None) or getattr(node, "keys", None)
    return isinstance(node, ast.Constant | ast.List | ast.Dict | ast.Tuple) and not elements
