"""
What the product assumes about AWS is a fact with a source and a test, or an open item.

The facts lie beside this file, one TOML file per service; docs/facts.md says how to add one.
"""

import ast
import json
import re
from datetime import date, timedelta

import pytest

from tests.facts.table import (
    Fact,
    all_facts,
    all_operations,
    calls_of,
    counts,
    empty_cells,
    facts_of,
    incomplete,
    is_there,
    numbers_by_module,
    numbers_of,
    older_than_a_year,
    operations_by_method,
    other_values,
    sites_by_module,
    sites_of,
    untagged,
)
from tests.test_tidy import ROOT, dead_references, expect_none

FACTS = {fact.id: fact for fact in all_facts()}
OPERATIONS = all_operations()
EMBEDDED = tuple(f"tools/shardfleet_local/{room}" for room in ("aws", "emr_serverless", "kinesis"))
# Where clients of AWS are called: everywhere but in the embedded AWS, of which deploy is a client.
CALLERS = ("layer/python/shardfleet", "functions", "spark", "cdk", "tools")
# Methods of our own with the name of an operation.
OWN_METHODS = {
    ("adapters/http/connections.py", "create_connection"),
    ("adapters/http/h2_connection.py", "create_connection"),
    ("shardfleet_local/rig/proxy.py", "create_connection"),
    ("engine/shard/pushing.py", "subscribe"),
    ("shardfleet_testkit/simulation/streams.py", "subscribe"),
    ("adapters/http/json_service.py", "query"),
    ("shardfleet_ops/cli/position.py", "scan"),
    ("shardfleet_spark/publish/publishing.py", "publish"),
}
CLIENT = re.compile(r'client\(\s*"([a-z0-9-]+)"')
# A call that the SDK makes for us, one that it cannot make, and those that the definitions of our
# state machines make.
CALLED_OTHERWISE = {"kinesis SubscribeToShard", "sts AssumeRole"}
TASK = re.compile(r":states:::(?:aws-sdk:)?(\w+):(\w+)")
SERVICE_OF_TASK = {"states": "stepfunctions"}
# Actions of our roles that are no operations, or that AWS's own services take in our name.
SERVICE_OF_ACTION = {"states": "stepfunctions"}
NAMES_OF_ACTIONS = {"lambda InvokeFunction": "lambda Invoke"}
NO_CALLS_OF_OURS = re.compile(r"(ec2|kms|logs|sns|xray) |(s3|sqs) \*")


def test_each_fact_has_a_source_and_is_kept_and_tested_or_open():
    expect_none(complaint for fact in FACTS.values() for complaint in incomplete(fact))


def test_an_id_is_given_once():
    ids = [fact.id for fact in all_facts()]
    expect_none(sorted({each for each in ids if ids.count(each) > 1}))


def test_what_keeps_a_fact_is_there():
    expect_none(
        f"{fact.id}: there is no {place}"
        for fact in FACTS.values()
        for place in fact.enforced
        if not is_there(place)
    )


def test_the_tests_of_a_fact_exist():
    named = {fact.id: " ".join(f"`{test}`" for test in fact.test) for fact in FACTS.values()}
    expect_none(
        f"{name}: {complaint}"
        for name, text in named.items()
        for complaint in dead_references(text, ROOT)
    )
    expect_none(
        f"{fact.id}: {test!r} is no tests/….py::name"
        for fact in FACTS.values()
        for test in fact.test
        if not re.fullmatch(r"tests/[\w/]+\.py(::\w+)+", test)
    )


def test_no_fact_was_looked_up_before_the_project_began_or_is_yet_to_be():
    # The first commit is of 2026-11-20, and a day may have begun elsewhere.
    first, last = date(2026, 11, 20), date.today() + timedelta(days=1)  # noqa: DTZ011
    expect_none(
        f"{fact.id}: {fact.looked_up}"
        for fact in FACTS.values()
        if not first <= fact.looked_up <= last
    )


def test_a_fact_that_was_looked_up_more_than_a_year_ago_is_named():
    """Of today's date nothing is asserted: `make audit` asks by it."""
    days = {"K62": date(2026, 11, 28), "K63": date(2026, 11, 27), "K64": date(2028, 1, 1)}
    facts = [Fact(name, "Kinesis", "…", looked_up=day) for name, day in days.items()]

    assert list(older_than_a_year(facts, date(2027, 11, 27))) == []
    assert list(older_than_a_year(facts, date(2027, 11, 28))) == [
        "K63 was last looked up on 2026-11-27: …"
    ]
    everything = list(older_than_a_year(FACTS.values(), date(2200, 1, 1)))
    assert len(everything) == len(FACTS)


def test_a_constant_is_what_its_fact_says():
    expect_none(complaint for fact in FACTS.values() for complaint in other_values(fact))


def test_a_number_of_the_product_that_names_a_quota_has_a_fact_with_a_day():
    held = {place for fact in FACTS.values() for place in fact.values}
    numbers = list(numbers_by_module())

    assert len(numbers) >= 30
    expect_none(
        f"{place}: no fact has its value, and it names none (fact K62)"
        for place, named in numbers
        if place not in held and not (named and named <= FACTS.keys())
    )


def differences():
    """Where a judge does otherwise: its name, the fact's, and the test that is to fail there."""
    for path in sorted((ROOT / "tests/contract").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            for mark in ast.walk(node) if isinstance(node, ast.FunctionDef) else ():
                if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith(".fails_on"):
                    judge, fact, _ = (ast.literal_eval(each) for each in mark.args)
                    yield judge, fact, f"{path.relative_to(ROOT).as_posix()}::{node.name}"


def test_a_difference_between_judges_is_a_fact_that_names_the_test():
    assert len(list(differences())) >= 14
    expect_none(
        f"{test}: {judge} does not keep {fact}, which does not name the test"
        for judge, fact, test in differences()
        if fact not in FACTS or test not in FACTS[fact].test
    )


def test_each_refusal_and_limit_of_the_embedded_aws_names_its_fact():
    expect_none(untagged(sites_by_module(EMBEDDED), FACTS))


def test_half_of_the_facts_are_known_from_more_than_a_model():
    elsewhere = [fact for fact in FACTS.values() if set(fact.kinds) - {"model"}]

    assert len(elsewhere) * 2 >= len(FACTS), list(counts(FACTS.values()))


def test_no_cell_of_an_operation_is_empty():
    expect_none(
        complaint for name, row in OPERATIONS.items() for complaint in empty_cells(name, row, FACTS)
    )


def test_the_table_of_operations_has_what_the_product_calls_and_nothing_else():
    called = called_by_clients() | called_by_state_machines() | CALLED_OTHERWISE

    expect_none(
        f"{each} is called and not in the table" for each in sorted(called - set(OPERATIONS))
    )
    expect_none(
        f"{each} is in the table and not called" for each in sorted(set(OPERATIONS) - called)
    )


def test_what_our_roles_may_call_is_in_the_table_of_operations():
    templates = (ROOT / "tests/cdk/snapshots").glob("*.json")
    actions = {each for path in templates for each in actions_in(json.loads(path.read_text()))}
    named = {NAMES_OF_ACTIONS.get(each, each) for each in map(in_sdk_words, actions)}

    assert "kinesis GetRecords" in named
    expect_none(
        f"a role may call {each}, which is not in the table"
        for each in sorted(named - set(OPERATIONS))
        if not NO_CALLS_OF_OURS.match(each)
    )


def actions_in(template):
    """Yield the actions of every statement of a template."""
    if isinstance(template, dict):
        action = template.get("Action")
        yield from [action] if isinstance(action, str) else action or ()
    for each in template.values() if isinstance(template, dict) else template:
        if isinstance(each, dict | list):
            yield from actions_in(each)


def in_sdk_words(action):
    service, _, operation = action.partition(":")
    return f"{SERVICE_OF_ACTION.get(service, service)} {operation}"


def called_by_clients(*places):
    sources = {path: path.read_text("utf-8") for path in callers(*places or CALLERS)}
    services = {service for source in sources.values() for service in CLIENT.findall(source)}
    methods = operations_by_method(services | {name.partition(" ")[0] for name in OPERATIONS})
    found = set()
    for path, source in sources.items():
        names = {name for _, name in calls_of(source, methods)}
        names -= {name for end, name in OWN_METHODS if path.as_posix().endswith(end)}
        for name in names:
            # Of several services with such a method, the one that the table has.
            known = methods[name] & set(OPERATIONS)
            found |= known or methods[name]
    return found


def callers(*places):
    for place in places:
        for path in sorted((ROOT / place).rglob("*.py")):
            folder = path.parent.relative_to(ROOT).as_posix()
            if folder not in EMBEDDED or path.name == "deploy.py":
                yield path


def called_by_state_machines():
    found = set()
    for path in sorted((ROOT / "cdk").rglob("*.py")):
        source = path.read_text("utf-8")
        for service, task in TASK.findall(source):
            if task[0].islower():
                name = f"{SERVICE_OF_TASK.get(service, service)} {task[0].upper()}{task[1:]}"
                found.add(name)
    return found


FOUND = {"K62": Fact("K62", "Kinesis", "…")}


@pytest.mark.parametrize(
    "source",
    [
        "raise not_found('gone')",
        "raise not_found('gone')  # fact K99",
        "def f():\n    raise failed('x') from error",
        "MOST = 20",
        "MOST = 20 * MIB",
        "MOST = MIB",
        "class Settings:\n    shards: int = 20_000",
        "def f(n):\n    return n > 400",
        "f(most=50)",
        "f(cloudwatch._error('ValidationError'))",
    ],
)
def test_a_refusal_or_limit_without_a_fact_is_seen(source):
    assert list(untagged([("m.py", site) for site in sites_of(source)], FOUND))


@pytest.mark.parametrize(
    "source",
    [
        "raise not_found('gone')  # fact K62",
        "raise not_found(\n    'gone'\n)  # fact K62",
        "MOST = 20  # ours: as long as anybody waits",
        "raise",
        "raise DeploymentFailed('for who started it')",
        "ONE = 1\nWORD = 'a'\nif x > 0: pass",
    ],
)
def test_what_names_its_fact_is_left_alone(source):
    assert not list(untagged([("m.py", site) for site in sites_of(source)], FOUND))


@pytest.mark.parametrize(
    "row",
    [
        {"statement": "…", "source": ["model kinesis ListShards"]},
        {
            "statement": "…",
            "source": ["model kinesis ListShards"],
            "enforced": ["shardfleet.errors"],
        },
        {"statement": "…", "open": "nothing rests on it"},
        {"statement": "…", "source": ["hearsay a blog"], "open": "…"},
        {"statement": "…", "source": ["issue somewhere on the web"], "open": "…"},
        {"statement": "…", "source": ["model kinesis ListShards.NoSuchMember"], "open": "…"},
        {"statement": "…", "source": ["model kinesis NoSuchOperation"], "open": "…"},
        {"statement": "…", "source": ["model kinesis ListShards"], "open": "…", "looked_up": None},
        {
            "statement": "…",
            "source": ["model kinesis ListShards"],
            "open": "…",
            "looked_up": "2026",
        },
    ],
)
def test_a_fact_that_lacks_something_is_seen(row):
    row = {"looked_up": date(2026, 11, 28), **row}
    fact = Fact(
        "K00", "Kinesis", **{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    )

    assert len(list(incomplete(fact))) == 1


@pytest.mark.parametrize(
    "place",
    ["shardfleet.producer.settings:ENTRIES_MOST", "shardfleet.domain.cost.prices:PRICES.as_of"],
)
def test_a_constant_of_another_value_is_seen(place):
    assert list(other_values(Fact("K00", "Kinesis", "…", values={place: 7})))


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("MOST = 500  # Kinesis quota.", [("MOST", set())]),
        ("# Quotas of IAM.\nA, B = 10, 20", [("A", set()), ("B", set())]),
        ('MOST: int = 500\n"""Of a request (fact K76)."""', [("MOST", {"K76"})]),
        ("MOST = 500  # As measured.", []),
        ("KINDS = ('a',)  # Kinesis quota.", []),
    ],
)
def test_a_number_that_names_a_quota_is_found(source, named):
    assert [found[1:] for found in numbers_of(source)] == named


def test_a_key_that_no_fact_has_is_refused():
    with pytest.raises(TypeError, match="sources"):
        facts_of('service = "S"\n[K00]\nstatement = "…"\nsources = ["page P"]')


@pytest.mark.parametrize(
    "place",
    ["shardfleet.errors:NoSuchError", "shardfleet.no_such", "functions/none.py", "nowhere.at_all"],
)
def test_a_place_that_is_not_there_is_seen(place):
    assert not is_there(place)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("kinesis ListShards", {"limits": []}),
        ("kinesis ListShards", {"limits": "none: it has none at all"}),
        ("kinesis ListShards", {"paging": "none: one page is enough"}),
        ("kinesis GetShardIterator", {"paging": "none"}),
        ("kinesis ListShards", {"refusals": ["K00"]}),
        ("kinesis ListShards", {"mood": ["K62"]}),
        ("kinesis ListShard", {}),
    ],
)
def test_an_empty_cell_is_seen(name, change):
    row = json.loads(json.dumps(OPERATIONS["kinesis ListShards"])) | change

    assert list(empty_cells(name, row, FACTS))
