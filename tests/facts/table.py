"""
The table of facts about AWS, and the places of the code that rest on it.

`python -m tests.facts.table` counts the facts by service and by what they are known from, and fails
where one was last looked up more than a year ago: `make audit` runs it, for the passing of time
shall not fail `make test`.
A fact is told by its id at the line that refuses or limits: `# fact K62`; what is a rule of this
project and none of AWS says so: `# ours`, with the reason where it is not plain.
"""

import ast
import importlib
import importlib.util
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path

import botocore.session
from botocore import xform_name

from tests.test_rooms import PACKAGES
from tests.test_tidy import ROOT

FOLDER = Path(__file__).parent
OPERATIONS = "operations.toml"
# What a fact may be known from: a page of AWS's documentation by its title, botocore's model, a
# thread of others who met it, a bug that others had by not knowing it, a class of the KCL or of
# Lambda's runtime.
KINDS = ("page", "model", "issue", "bug", "class")
CELLS = ("refusals", "limits", "paging", "consistency")
THREAD = re.compile(r"[\w.-]+/[\w.-]+#\d+")
NONE = re.compile(r"none: \S.{9,}")
TAG = re.compile(r"#\s*(?:fact ([A-Z]\d{2}(?:, [A-Z]\d{2})*)|(ours)\b)")
# Told to who starts the embedded AWS, never to a client of it.
NOT_OF_AWS = {
    "ConfigurationError",
    "DeploymentFailed",
    "EmbeddedAwsFailed",
    "MinistackMismatch",
    "UnpackFailed",
}
# Functions of the embedded AWS that answer with an error instead of raising it.
ANSWERS = {"_error", "exit_error", "timeout_error"}
MODELS = botocore.session.Session()
# The product's folders, whose numbers may rest on a fact.
PRODUCT = ("layer/python/shardfleet", "cdk/shardfleet_cdk", "spark/shardfleet_spark")
PRODUCT += ("tools/shardfleet_ops", "functions")
RESTS = re.compile(r"(?i)\bquotas?\b|\bfact ([A-Z]\d{2,3})\b")


@dataclass(frozen=True)
class Fact:
    """A fact: its id, the service's name, and what its table says."""

    id: str
    service: str
    statement: str
    source: tuple[str, ...] = ()
    looked_up: date | None = None
    values: dict = field(default_factory=dict)
    enforced: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    open: str = ""

    @property
    def kinds(self):
        """What it is known from, a word for each source."""
        return [source.partition(" ")[0] for source in self.source]


@dataclass(frozen=True)
class Site:
    """A line that refuses or limits, and the facts it names; `ours` where it names none."""

    line: int
    what: str
    facts: tuple[str, ...]
    ours: bool


def facts_of(text):
    """Return the facts of one file; a key that is none of a fact's is a TypeError."""
    table = tomllib.loads(text)
    service = table.pop("service")
    return [
        Fact(
            id=name,
            service=service,
            **{
                key: tuple(value) if isinstance(value, list) else value
                for key, value in row.items()
            },
        )
        for name, row in table.items()
    ]


def all_facts():
    """Return every fact of the folder, in the order of the files."""
    paths = sorted(path for path in FOLDER.glob("*.toml") if path.name != OPERATIONS)
    return [fact for path in paths for fact in facts_of(path.read_text("utf-8"))]


def all_operations():
    """Return the rows of the operations by `service Operation`."""
    return tomllib.loads((FOLDER / OPERATIONS).read_text("utf-8"))


def incomplete(fact):
    """Yield what a fact lacks: a source, or who enforces and tests it, or what is open."""
    if not fact.statement or not fact.source:
        yield f"{fact.id} has no statement or no source"
    for source in fact.source:
        kind, _, where = source.partition(" ")
        if kind not in KINDS:
            yield f"{fact.id}: a source begins with one of {KINDS}, not {kind!r}"
        elif kind in ("issue", "bug") and not THREAD.fullmatch(where):
            yield f"{fact.id}: {where} is no owner/repository#number"
        elif kind == "model" and not is_in_model(where):
            yield f"{fact.id}: botocore's model has no {where}"
    if type(fact.looked_up) is not date:
        yield f"{fact.id} has no day on which it was last looked up"
    if not fact.open and not (fact.enforced and fact.test):
        yield f"{fact.id} is neither enforced and tested nor open"


def older_than_a_year(facts, today):
    """Yield each fact that was last looked up more than a year before a day, and when that was."""
    yield from (
        f"{fact.id} was last looked up on {fact.looked_up}: {fact.statement}"
        for fact in sorted(facts, key=lambda each: each.looked_up)
        if fact.looked_up < today.replace(year=today.year - 1)
    )


def other_values(fact):
    """Yield the constants that are not what a fact says they are."""
    for place, value in fact.values.items():
        module, _, name = place.partition(":")
        found = importlib.import_module(module)
        for part in name.split("."):
            fields = getattr(found, "__dataclass_fields__", {}) if isinstance(found, type) else {}
            found = fields[part].default if part in fields else getattr(found, part)
        if (list(found) if isinstance(found, tuple) else found) != value:
            yield f"{fact.id}: {place} is {found!r}, and the fact says {value!r}"


def numbers_of(source):
    """Yield (line, name, facts named) of a module's numbers whose words name a quota or a fact."""
    lines, tree = source.splitlines(), ast.parse(source)
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not node.value:
            continue
        first = node.lineno - 1
        while first and lines[first - 1].startswith("#"):
            first -= 1
        words = [line.partition("#")[2] for line in lines[first : node.end_lineno]]
        match after:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                words.append(text)
        said = RESTS.findall(" ".join(words))
        numeric = any(
            isinstance(each, ast.Constant) and isinstance(each.value, int | float)
            for each in ast.walk(node.value)
        )
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [each.id for one in targets for each in ast.walk(one) if isinstance(each, ast.Name)]
        if said and numeric:
            yield from ((node.lineno, name, {each for each in said if each}) for name in names)


def numbers_by_module():
    """Yield (module:name, facts named) of the product's numbers that name a quota or a fact."""
    folders = {ROOT / folder: package for package, folder in PACKAGES.items()}
    for folder in PRODUCT:
        package = folders.get(ROOT / folder, "")
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            for _, name, named in numbers_of(path.read_text("utf-8")):
                yield f"{'.'.join((package, *parts))}:{name}", named


def is_in_model(where):
    """Tell whether botocore's model has a `service Operation`, `… Shape` or `….member` of it."""
    service, _, path = where.partition(" ")
    name, *members = path.split(".")
    model = MODELS.get_service_model(service)
    if name in model.operation_names:
        operation = model.operation_model(name)
        shapes = [shape for shape in (operation.input_shape, operation.output_shape) if shape]
    elif name in model.shape_names:
        shapes = [model.shape_for(name)]
    else:
        return False
    return not members or any(members[0] in getattr(shape, "members", ()) for shape in shapes)


def is_there(place):
    """Tell whether a module, `module:name` or file of the repository or of ministack exists."""
    if place.endswith(".py"):
        return (ROOT / place).is_file()
    module, _, name = place.partition(":")
    package, *parts = module.split(".")
    if package in PACKAGES:
        folder = ROOT / PACKAGES[package]
    else:
        found = importlib.util.find_spec(package)
        folder = Path(found.submodule_search_locations[0]) if found else Path()
    path = folder.joinpath(*parts)
    if not name:
        return path.is_dir() or path.with_suffix(".py").is_file()
    file = path.with_suffix(".py")
    return file.is_file() and defines(ast.parse(file.read_text("utf-8")), name.split("."))


def defines(tree, names):
    """Tell whether a module or class defines the first name, and that one the next."""
    first, *rest = names
    for node in tree.body:
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        bound = {target.id for target in targets if isinstance(target, ast.Name)}
        if first == getattr(node, "name", None) or first in bound:
            return not rest or defines(node, rest)
    return False


def sites_of(source):
    """Yield the places of a module that refuse or limit, each with the facts that it names."""
    tags = {
        token.start[0]: match
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and (match := TAG.search(token.string))
    }
    tree = ast.parse(source)
    # A formatter may move a comment to the end of a statement of several lines.
    ends = {
        each: (statement.lineno, statement.end_lineno)
        for statement in ast.walk(tree)
        if isinstance(statement, ast.stmt) and not hasattr(statement, "body")
        for each in ast.walk(statement)
    }
    for node, what in _found(tree):
        first, last = ends.get(node, (node.lineno, node.end_lineno))
        said = [tags[line] for line in range(first, last + 1) if line in tags]
        facts = tuple(fact for match in said if match[1] for fact in match[1].split(", "))
        yield Site(node.lineno, what, facts, ours=any(match[2] for match in said))


def _found(tree):
    for node in ast.walk(tree):
        match node:
            case ast.Raise(exc=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))):
                if name not in NOT_OF_AWS:
                    yield node, f"raise {name}"
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in ANSWERS:
                yield node, name
            case ast.Compare() if any(_is_limit(each) for each in (node.left, *node.comparators)):
                yield node, ast.unparse(node)
            case ast.keyword(value=value) if _is_limit(value):
                yield node, ast.unparse(node)
            case ast.Module(body=body) | ast.ClassDef(body=body):
                for each in body:
                    value = each.value if isinstance(each, ast.Assign | ast.AnnAssign) else None
                    if value and any(_is_limit(part) for part in ast.walk(value)):
                        yield each, ast.unparse(each).splitlines()[0][:60]


def _is_limit(node):
    match node:
        case ast.Constant(value=int() | float() as value):
            return value > 1
        case ast.Name(id="KIB" | "MIB"):
            return True
    return False


def sites_by_module(folders):
    """Yield (path, site) for every site of the modules in these folders of the library."""
    for folder in folders:
        for path in sorted((ROOT / folder).glob("*.py")):
            for site in sites_of(path.read_text("utf-8")):
                yield path.relative_to(ROOT), site


def untagged(sites, facts):
    """Yield the sites that name no fact, or one that there is not."""
    for path, site in sites:
        if not site.facts and not site.ours:
            yield f"{path}:{site.line}: {site.what} names no fact (# fact K62, or # ours)"
        yield from (
            f"{path}:{site.line}: there is no fact {each}"
            for each in site.facts
            if each not in facts
        )


def calls_of(source, names):
    """Yield (line, name) for each client method of AWS that a module mentions."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name) if name in names:
                yield node.lineno, name
            case ast.Call(
                func=ast.Attribute(attr="get_paginator"), args=[ast.Constant(value=name)]
            ):
                yield node.lineno, name


def operations_by_method(services):
    """Return {method of a client: {"service Operation", …}} of these services."""
    methods = {}
    for service in services:
        for operation in MODELS.get_service_model(service).operation_names:
            methods.setdefault(xform_name(operation), set()).add(f"{service} {operation}")
    return methods


def empty_cells(name, row, facts):
    """Yield what a row of the operations lacks, and facts in it that there are not."""
    service, _, operation = name.partition(" ")
    model = MODELS.get_service_model(service)
    if operation not in model.operation_names:
        yield f"{name} is no operation of botocore's model"
        return
    if set(row) != set(CELLS):
        yield f"{name} has {sorted(row)}, not {CELLS}"
    for cell, value in row.items():
        if isinstance(value, str):
            if cell != "paging" or not NONE.fullmatch(value):
                yield f"{name}, {cell}: facts, or for paging 'none: why', not {value!r}"
            elif _has_pages(service, operation):
                yield f"{name} has pages by botocore, and the table says {value!r}"
        elif not value:
            yield f"{name}, {cell} is empty"
        else:
            yield from (f"{name}, {cell}: no fact {each}" for each in value if each not in facts)


def _has_pages(service, operation):
    loader = MODELS.get_component("data_loader")
    return operation in loader.load_service_model(service, "paginators-1")["pagination"]


def counts(facts):
    """Return lines: facts by service, and facts by what they are known from."""
    services = Counter(fact.service for fact in facts)
    kinds = Counter(kind for fact in facts for kind in set(fact.kinds))
    elsewhere = sum(bool(set(fact.kinds) - {"model"}) for fact in facts)
    kept = sum(bool(fact.enforced and fact.test) for fact in facts)
    yield f"{len(facts)} facts; {kept} enforced and tested; {elsewhere} known beside a model"
    yield ", ".join(f"{name} {count}" for name, count in services.items())
    yield ", ".join(f"{kind} {kinds[kind]}" for kind in KINDS)


def main():
    """Count; 1 where a fact is to be looked up again."""
    facts = all_facts()
    old = list(older_than_a_year(facts, datetime.now(UTC).date()))
    told = [*counts(facts), f"{len(old)} last looked up more than a year ago", *old]
    sys.stdout.write("\n".join((*told, "")))
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
