"""
The rooms as tests: who may import whom inside a floor, one meaning per class name, no detours.

`tests/rooms.toml` says which rooms a floor has, lowest first, and which arrows there are between
them, each with its reason. Between floors the arrows are those of `test_tidy`.
"""

import ast
import functools
import gc
import re
import tomllib
from collections import Counter, defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath

import pytest

from shardfleet.config import OneOf, options
from tests.test_tidy import PYTHON, ROOT, expect_none, imports_of

FLOORS = tomllib.loads((ROOT / "tests/rooms.toml").read_text("utf-8"))
# Package -> the folder that it lies in. In the library each folder is a floor, in the others the
# package itself is one.
PACKAGES = {
    "shardfleet": "layer/python/shardfleet",
    "shardfleet_cdk": "cdk/shardfleet_cdk",
    "shardfleet_spark": "spark/shardfleet_spark",
    "shardfleet_ops": "tools/shardfleet_ops",
    "shardfleet_local": "tools/shardfleet_local",
    "shardfleet_processes": "tools/shardfleet_processes",
    "shardfleet_testkit": "tools/shardfleet_testkit",
}
# Where a user imports from: what is offered here is defined in the modules behind.
SURFACES = {
    "shardfleet",
    "shardfleet.producer",
    "shardfleet_cdk",
    "shardfleet_cdk.monitoring",
    "shardfleet_spark",
    "shardfleet_testkit",
}
TEST_KIT = "shardfleet_testkit"
# Spark's source has options of its own, and the test kit draws a fleet's.
NO_FLEET = (TEST_KIT, "shardfleet_spark")
# A word in a name -> the way of delivering that it is of. A record may be plain in another sense,
# so that way is named by its module alone.
WAYS = {
    "manual": "manual",
    **dict.fromkeys(("lane", "lanes"), "lanes"),
    **dict.fromkeys(("window", "windows", "tumbling"), "windows"),
}
WAY_MODULES = {**WAYS, "plain": "plain", "open_records": "manual"}
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
# Every kind of document is declared once, whoever writes it.
DECLARES_DOCUMENTS = {f"{PACKAGES['shardfleet']}/engine/state/kinds.py"}
# Beyond as many modules a room is asked whether it is one idea, and its docstring answers.
ROOM_MODULES = 12
WHY_LARGE = re.compile(r"\bone\s+idea\b")


def dotted(path):
    """Return the dotted name of one of our modules by its path, None for any other file."""
    for package, folder in PACKAGES.items():
        if PurePosixPath(path).is_relative_to(folder):
            parts = PurePosixPath(path).relative_to(folder).with_suffix("").parts
            return ".".join((package, *parts)).removesuffix(".__init__")
    return None


@functools.cache  # Each rule asks for them.
def listed_imports(tree):
    return tuple(imports_of(tree))


def imported(tree, modules):
    """Yield (line, module of ours, name or None) for everything that a file imports of ours."""
    for line, module, names in listed_imports(tree):
        if module.split(".")[0] in PACKAGES:
            for name in names or (None,):
                whole = f"{module}.{name}" in modules
                yield line, f"{module}.{name}" if whole else module, None if whole else name


def floor_of(module):
    """Return the floor of a module, and the rest of its name in parts."""
    package, *parts = module.split(".")
    return (parts[0], parts[1:]) if package == "shardfleet" and parts else (package, parts)


def room_of(module, floors, folders):
    """
    Return floor and room of a module, None for one that is no part of a floor with rooms.

    A module at a floor's root lies in the room "."; one that is named in the list of rooms (it
    composes the others) is a room of its own.
    """
    floor, parts = floor_of(module)
    if floor not in floors or not parts:
        return None
    is_room = len(parts) > 1 or module in folders or parts[0] in floors[floor]["rooms"]
    return floor, parts[0] if is_room else "."


def steps(trees, floors):
    """Yield (path, line, floor, room, room reached) for each import between two rooms."""
    modules = {dotted(path): path for path in trees if dotted(path)}
    folders = {name.rpartition(".")[0] for name in modules}
    for name, path in modules.items():
        here = room_of(name, floors, folders)
        for line, reached, _ in imported(trees[path], modules):
            there = room_of(reached, floors, folders)
            if here and there and here != there and here[0] == there[0]:
                yield path, line, *here, there[1]


def wrong_arrows(trees, floors):
    """Complain of imports that no arrow allows, and of arrows that should not be."""
    used = set()
    for path, line, floor, room, reached in steps(trees, floors):
        used.add((floor, f"{room} -> {reached}"))
        if f"{room} -> {reached}" not in floors[floor]["arrows"]:
            yield f"{path}:{line}: {floor}: {room} -> {reached} is not declared in rooms.toml"
    for floor, declared in floors.items():
        height = {room: number for number, room in enumerate(declared["rooms"])}
        for arrow, reason in declared["arrows"].items():
            room, _, reached = arrow.partition(" -> ")
            if not {room, reached} <= height.keys():
                yield f"rooms.toml: {floor}: {arrow}: one of them is no room of this floor"
            elif height[room] <= height[reached]:
                yield f"rooms.toml: {floor}: {arrow} leads upward"
            elif (floor, arrow) not in used:
                yield f"rooms.toml: {floor}: {arrow}: nothing is imported so; delete the line"
            if not reason.strip():
                yield f"rooms.toml: {floor}: {arrow} has no reason"


def detours(trees):
    """Complain of names that are imported from a module which itself imports them."""
    modules = {dotted(path): path for path in trees if dotted(path)}
    defined = {name: own_names(trees[path]) for name, path in modules.items()}
    for path, tree in trees.items():
        for line, module, name in imported(tree, modules):
            is_kit = module == TEST_KIT or module.startswith(f"{TEST_KIT}.")
            if name is None or is_kit or module in SURFACES or module not in defined:
                continue
            if name not in defined[module]:
                yield f"{path}:{line}: {module} does not define {name}; import it from where it is"


def circle(trees, floors):
    """Return rooms of any floors that import each other in a circle; a root's modules are rooms."""
    modules = {dotted(path): path for path in trees if dotted(path)}
    folders = {name.rpartition(".")[0] for name in modules}

    def room(name):
        found = room_of(name, floors, folders)
        floor, parts = floor_of(name)
        return name if not parts or (found and found[1] == ".") else (found or (floor,))

    reached = defaultdict(set)
    for name, path in modules.items():
        reached[room(name)] |= {room(each) for _, each, _ in imported(trees[path], modules)}
        reached[room(name)].discard(room(name))
    try:
        TopologicalSorter({each: rooms - SURFACES for each, rooms in reached.items()}).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def own_names(tree):
    """Return the names that a module binds at its top level otherwise than by an import."""
    names = set()
    pending = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            pending += ast.iter_child_nodes(node)
    return names


def shared_class_names(trees):
    """Complain of public classes of one name in two modules."""
    homes = defaultdict(list)
    for path, tree in trees.items():
        for node in tree.body if dotted(path) else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(f"{path}:{node.lineno}")
    for name, places in homes.items():
        if len(places) > 1:
            yield f"{name} is the name of {len(places)} classes: {', '.join(places)}"


def crowded_rooms(trees):
    """Complain of folders with many modules whose first file does not say why they are one idea."""
    paths = [PurePosixPath(path) for path in trees if dotted(path)]
    count = Counter(path.parent for path in paths if path.name != "__init__.py")
    for room, modules in count.items():
        first = trees.get(f"{room}/__init__.py")
        why = (ast.get_docstring(first) if first else None) or ""
        if modules > ROOM_MODULES and not WHY_LARGE.search(why):
            yield f"{room}: {modules} modules; its __init__.py says why it is one idea, or split it"


def named_ways(tree):
    """Return which ways of delivering a module names: by what it imports, or in a name or text."""
    words = []
    for node in ast.walk(tree):
        names = (getattr(node, field, None) for field in ("id", "attr", "arg", "name"))
        words += [word for name in names if isinstance(name, str) for word in WORD.findall(name)]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.append(node.value)
    modules = [
        part
        for _, module, names in imports_of(tree)
        if ".delivery" in module
        for part in (*module.split("."), *(names or ()))
    ]
    ways = {WAYS.get(word.lower()) for word in words} | {WAY_MODULES.get(each) for each in modules}
    return ways - {None}


def mixed_ways(trees):
    """Complain of modules of the engine that name two ways of delivering; one knows no other."""
    for path, tree in trees.items():
        if not path.startswith(f"{PACKAGES['shardfleet']}/engine/") or path in DECLARES_DOCUMENTS:
            continue
        ways = named_ways(tree)
        if len(ways) > 1:
            yield f"{path}: it names {' and '.join(sorted(ways))}; ask the shard's Progress"


def switched_options(trees):
    """Complain of product code that compares an option of a fleet with one of its words."""
    words = {each.name: each.allowed.words for each in options() if isinstance(each.allowed, OneOf)}
    for path, tree in trees.items():
        if not dotted(path) or dotted(path).startswith(NO_FLEET):
            continue
        for node in ast.walk(tree):
            parts = [node.left, *node.comparators] if isinstance(node, ast.Compare) else ()
            if isinstance(node, ast.Match):
                parts = (node.subject, *(case.pattern for case in node.cases))
            named = {word for part in parts for word in words.get(getattr(part, "attr", ""), ())}
            texts = {getattr(each, "value", "") for part in parts for each in ast.walk(part)}
            if any(each in named for each in texts):
                yield f"{path}:{node.lineno}: a switch on an option; make it a table of the words"


def keys_for_shards(trees):
    """Complain of a lease's key that is taken for a shard's id, or an id for a key."""
    names = {"shard_id": "lease_key", "lease_key": "shard_id"}
    for path, tree in trees.items():
        parts = path.removeprefix(f"{PACKAGES['shardfleet']}/").split("/")
        if parts[0] not in ("engine", "domain") or parts[:2] == ["domain", "leases"]:
            continue
        for node in ast.walk(tree):
            found = getattr(node, "value", None)
            named = getattr(found, "attr", getattr(found, "id", None))
            if isinstance(node, ast.keyword) and named and named == names.get(node.arg):
                yield f"{path}:{node.lineno}: {node.arg}={named}; ShardRef says which is whose"


@functools.cache  # In whichever process needs it: each of `make test` imports this file.
def all_trees():
    """Return the syntax tree of each file of ours by its path; the collector lets them alone."""
    gc.disable()
    try:
        return {path: ast.parse((ROOT / path).read_text("utf-8")) for path in PYTHON}
    finally:
        gc.freeze()
        gc.enable()


def test_rooms_are_entered_by_declared_arrows_that_lead_down():
    expect_none(wrong_arrows(all_trees(), FLOORS))


def test_names_are_imported_from_where_they_are_defined():
    expect_none(detours(all_trees()))


def test_a_public_class_name_means_one_thing():
    expect_none(shared_class_names(all_trees()))


def test_no_rooms_import_each_other_in_a_circle():
    assert circle(all_trees(), FLOORS) == []


def test_a_large_room_says_why_it_is_one_idea():
    expect_none(crowded_rooms(all_trees()))


def test_no_module_of_the_engine_names_two_ways_of_delivering():
    expect_none(mixed_ways(all_trees()))


def test_no_product_code_switches_on_the_word_of_an_option():
    expect_none(switched_options(all_trees()))


def test_the_key_of_a_lease_is_spelled_among_leases_alone():
    expect_none(keys_for_shards(all_trees()))


def test_floors_with_folders_have_their_rooms_listed():
    folders = {
        floor_of(name)[0]
        for path in all_trees()
        if (name := dotted(path)) and len(floor_of(name)[1]) > 1
    }

    assert folders - {"events"} == FLOORS.keys()


# --- each rule can fail ---

HALL = {"domain": {"rooms": ["stream", "leases", "turn"], "arrows": {"leases -> stream": "Why."}}}
DOMAIN = "layer/python/shardfleet/domain"


def trees_of(**sources):
    """Parse modules of the domain by their names: leases_lease is leases/lease.py."""
    return {
        f"{DOMAIN}/{name.replace('_', '/')}.py": ast.parse(source)
        for name, source in sources.items()
    }


DOWN = {
    "stream_shards": "class Shard: ...",
    "leases_lease": "from shardfleet.domain.stream.shards import Shard",
}


def test_a_declared_arrow_down_is_left_alone():
    assert list(wrong_arrows(trees_of(**DOWN), HALL)) == []


@pytest.mark.parametrize(
    ("sources", "arrows", "complaint"),
    [
        (
            {"stream_map": "from shardfleet.domain.leases import lease"},
            {},
            "stream -> leases is not declared",
        ),
        (
            {"turn": "def f():\n    from shardfleet.domain.stream import shards"},
            {},
            "turn -> stream is not declared",
        ),
        (
            {"stream_map": "import shardfleet.domain.leases.lease"},
            {"stream -> leases": "No."},
            "stream -> leases leads upward",
        ),
        ({}, {"turn -> leases": "Once."}, "nothing is imported so"),
        ({}, {"turn -> cellar": "Once."}, "no room of this floor"),
        (
            {"turn": "from shardfleet.domain.leases.lease import Lease"},
            {"turn -> leases": " "},
            "has no reason",
        ),
    ],
)
def test_a_wrong_arrow_between_rooms_is_seen(sources, arrows, complaint):
    hall = HALL["domain"]
    floors = {"domain": {**hall, "arrows": {**hall["arrows"], **arrows}}}

    (found,) = wrong_arrows(trees_of(**DOWN, **sources), floors)

    assert complaint in found


def test_a_circle_over_two_floors_is_seen():
    sources = trees_of(**DOWN, turn="from shardfleet.events.base import Event")
    sources["layer/python/shardfleet/events/base.py"] = ast.parse("import shardfleet.domain.turn")

    assert set(circle(sources, HALL)) == {("events",), ("domain", "turn")}
    assert circle(trees_of(**DOWN), HALL) == []


@pytest.mark.parametrize(
    "detour",
    ["from shardfleet.domain.leases.lease import Shard", "from shardfleet import domain, Shard"],
)
def test_a_name_imported_by_a_detour_is_seen(detour):
    sources = trees_of(**DOWN, turn=detour)
    sources["layer/python/shardfleet/__init__.py"] = ast.parse("")
    expected = 0 if "shardfleet import" in detour else 1

    assert len(list(detours(sources))) == expected


def test_a_name_bound_in_a_branch_is_defined_there():
    tree = ast.parse(
        "try:\n    import a\nexcept ImportError:\n    b = None\nC: int = 1\n(d, e) = 1, 2"
    )

    assert own_names(tree) == {"b", "C", "d", "e"}


def test_a_second_class_of_one_name_is_seen_but_no_private_one():
    sources = trees_of(stream_a="class Page: ...", leases_b="class Page: ...\nclass _P: ...")
    sources |= trees_of(turn="class _P: ...")

    assert len(list(shared_class_names(sources))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from shardfleet.engine.delivery import lanes, plain",
        "import shardfleet.engine.delivery.manual, shardfleet.domain.delivery.windows",
        "from shardfleet.domain.delivery.open_records import OpenRecords\nself._lanes = None",
        "if self._windows is not None:\n    pass\nelif config.checkpoint == 'manual':\n    pass",
        "class ShardLanes: ...\ndef end(tumbling_window_ms): ...",
    ],
)
def test_a_module_that_names_two_ways_of_delivering_is_seen(source):
    path = "layer/python/shardfleet/engine/shard/delivery.py"

    assert len(list(mixed_ways({path: ast.parse(source)}))) == 1
    assert not list(mixed_ways({path.replace("engine", "runtime"): ast.parse(source)}))


@pytest.mark.parametrize(
    "source",
    [
        "is_manual = config.checkpoint == 'manual'",
        "WAYS = [lambda config: 'manual' != config.checkpoint]",
        "if self._config.on_exhausted in ('sqs', 's3'):\n    pass",
        "match config.assignment:\n    case 'greedy':\n        pass",
    ],
)
def test_a_switch_on_the_word_of_an_option_is_seen(source):
    path = "layer/python/shardfleet/runtime/delivering.py"

    assert len(list(switched_options({path: ast.parse(source)}))) == 1
    assert not list(switched_options({"tests/runtime/test_a.py": ast.parse(source)}))
    assert not list(switched_options({path: ast.parse("lease.checkpoint == 'SHARD_END'")}))


@pytest.mark.parametrize(
    "call", ["Batch((), shard_id=held.lease_key)", "Lease(lease_key=shard_id)"]
)
def test_a_key_that_is_taken_for_a_shard_is_seen_outside_of_leases(call):
    path = "layer/python/shardfleet/engine/shard/end.py"

    assert len(list(keys_for_shards({path: ast.parse(call)}))) == 1
    assert not list(keys_for_shards({f"{DOMAIN}/leases/sync.py": ast.parse(call)}))
    assert not list(keys_for_shards({path: ast.parse("f(lease_key=key_of(shard_id))")}))


def test_a_crowded_room_is_seen_unless_it_says_why():
    sources = trees_of(**{f"leases_m{number}": "" for number in range(ROOM_MODULES + 1)})

    assert len(list(crowded_rooms(sources))) == 1
    assert not list(crowded_rooms(sources | trees_of(leases___init__="")))[1:]
    first = {f"{DOMAIN}/leases/__init__.py": ast.parse('"""Leases: one idea, for they are."""')}
    assert list(crowded_rooms(sources | first)) == []


# --- the map in the docs ---


def map_of(floors, trees):
    """Return the tables of the page about the architecture: each floor's rooms, top first."""
    lines = []
    for floor, declared in floors.items():
        package = PACKAGES.get(floor) or f"{PACKAGES['shardfleet']}/{floor}"
        lines += [f"### {floor}", "", "| room | what is in it | uses |", "|---|---|---|"]
        for room in reversed(declared["rooms"]):
            steps_down = (arrow.split(" -> ") for arrow in declared["arrows"])
            used = ["root" if there == "." else there for here, there in steps_down if here == room]
            name, about = f"`{room}`", "what all of them need"
            if room == ".":
                name = "at the root"
            else:
                file = f"{package}/{room}/__init__.py"
                page = ast.get_docstring(trees.get(file) or trees[f"{package}/{room}.py"])
                about = page.split("\n")[0].replace("``", "`")
            lines.append(f"| {name} | {about} | {', '.join(used)} |")
        lines.append("")
    return "\n".join(lines)


def test_the_page_about_the_architecture_has_the_rooms_as_they_are():
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    expected = map_of(FLOORS, all_trees())

    if expected not in page:
        pytest.fail(f"docs/architecture.md, floors and rooms, should read:\n\n{expected}")
