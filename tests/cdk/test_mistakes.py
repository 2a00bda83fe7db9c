"""Mistakes are refused at synth, by a message that names what, what was found and what to do."""

import re

import pytest

from shardfleet.errors import ConfigurationError

ARN = "arn:aws:kinesis:eu-central-1:999999999999:stream/orders"


@pytest.fixture(scope="session")
def cdk():
    # Imported here, because it starts Node, which collecting the tests shall not.
    import shardfleet_cdk  # noqa: PLC0415

    return shardfleet_cdk


@pytest.fixture
def a_fleet(cdk, handler_folder, new_app):
    from aws_cdk import Stack  # noqa: PLC0415
    from aws_cdk import aws_kinesis as kinesis  # noqa: PLC0415

    def make(**options):
        stack = Stack(new_app(), "Stack")
        stream = kinesis.Stream.from_stream_arn(stack, "Orders", ARN)
        options.setdefault("handler", cdk.HandlerCode(folder=handler_folder))
        return cdk.ShardFleet(stack, "Fleet", stream=stream, **options)

    return make


def refusal(make, /, **options):
    with pytest.raises(ConfigurationError) as refused:
        make(**options)
    return str(refused.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"max_batch_record": 5},
            "max_batch_record: no such option; did you mean max_batch_records?",
        ),
        ({"colour": "red"}, "colour: no such option"),
        ({"io_threads": 4}, "io_threads: found in `config`, set it in `experts`"),
        ({"stream_arn": ARN}, "stream_arn: set by `stream`, not by `config`"),
        ({"handler_contract": "event"}, "handler_contract: set by `handler`, not by `config`"),
        ({"leases_per_worker": 0}, "leases_per_worker: 0 found, 1 to 1000 allowed"),
        ({"misrouted": "drop"}, "misrouted: 'drop' found, one of deliver, in-range, kpl allowed"),
        ({"on_exhausted": "mq"}, "'mq' found, one of stop, skip, sqs, s3, sns allowed"),
        ({"initial_position": "AT_TIMESTAMP"}, "initial_timestamp_ms: needed for"),
    ],
)
def test_a_wrong_option_is_named_with_the_constructs_path(a_fleet, config, message):
    found = refusal(a_fleet, config=config)

    assert found.startswith("Stack/Fleet: configuration: ")
    assert message in found


def test_all_wrong_options_are_named_at_once(a_fleet):
    found = refusal(a_fleet, config={"failover_ms": 1}, experts={"io_threads": 0})

    assert "io_threads: 0 found" in found
    assert "failover_ms: 1 found" in found


def test_a_handler_that_may_run_longer_than_a_turn_is_refused(a_fleet):
    found = refusal(a_fleet, config={"handler_timeout_ms": 840_001})

    assert "handler_timeout_ms: 840001 found, at most 840000 allowed" in found


def test_a_shorter_worker_time_out_leaves_less_for_the_handler(a_fleet, cdk):
    worker = cdk.WorkerOptions(timeout_s=60)

    found = refusal(a_fleet, worker=worker, config={"handler_timeout_ms": 45_001})
    assert "at most 45000 allowed: a turn lasts the worker's time-out (60 s)" in found

    fleet = a_fleet(worker=worker, config={"handler_timeout_ms": 45_000})
    assert fleet.config.handler_timeout_ms == 45_000


def test_a_manager_that_lambda_would_cut_off_is_refused(a_fleet, cdk):
    found = refusal(a_fleet, manager=cdk.ManagerOptions(timeout_s=30))

    assert "manager_run_ms: 57000 found, at most 20000 allowed" in found


@pytest.mark.parametrize("name", ["", "clicks and orders", "x" * 41, "clicks/eu"])
def test_a_name_that_execution_names_cannot_hold_is_refused(a_fleet, name):
    found = refusal(a_fleet, name=name)

    assert found.startswith(f"Stack/Fleet: fleet name {name!r}: 1 to 40 letters")


@pytest.fixture
def named(cdk, handler_folder, new_app):
    """Make fleets at these paths of one app, and return their names."""
    from aws_cdk import Stack  # noqa: PLC0415
    from aws_cdk import aws_kinesis as kinesis  # noqa: PLC0415
    from constructs import Construct  # noqa: PLC0415

    def make(*paths, **options):
        app, found = new_app(), []
        for path in paths:
            above, *within, last = path.split("/")
            scope = app.node.try_find_child(above) or Stack(app, above)
            for part in within:
                scope = scope.node.try_find_child(part) or Construct(scope, part)
            stream = kinesis.Stream.from_stream_arn(scope, f"{last}Stream", ARN)
            handler = cdk.HandlerCode(folder=handler_folder)
            fleet = cdk.ShardFleet(scope, last, stream=stream, handler=handler, **options)
            found.append(fleet.config.fleet)
        return found

    return make


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Clicks/Fleet", "clicks"),
        ("ClicksStack/Fleet", "clicks"),
        ("Stack/ShardFleet", "stack"),
        ("Shop/Orders", "shop-orders"),
        ("Shop/Ingest/Fleet", "shop-ingest"),
        ("Shop/Ingest_EU/Fleet", "shop-ingest-eu"),
    ],
)
def test_the_default_name_is_short_and_says_what_it_is_of(named, path, name):
    assert named(path) == [name]


def test_long_paths_have_names_that_fit_execution_names_and_differ(named):
    first, second = named(f"Shop/{'Visitors' * 6}/First", f"Shop/{'Visitors' * 6}/Second")

    assert len(first) == len(second) == 40
    assert first != second
    assert first.startswith("shop-visitorsvisitors")


@pytest.mark.parametrize(
    ("paths", "options"),
    [(("Shop/A/B-C", "Shop/A-B/C"), {}), (("Shop/A", "Shop/B"), {"name": "clicks"})],
)
def test_two_fleets_of_a_stack_cannot_have_one_name(named, paths, options):
    """Their metrics would be one, and no command could tell them apart."""
    with pytest.raises(ConfigurationError, match="another fleet of this stack has it"):
        named(*paths, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_mb": 64}, "worker memory_mb: 64 found, 128 to 10240 allowed"),
        ({"timeout_s": 901}, "worker timeout_s: 901 found, 30 to 900 allowed"),
        ({"max_loops": 1201}, "worker max_loops: 1201 found, 1 to 1200 allowed"),
        ({"environment": {"SHARDFLEET_FLEET": "x"}}, "SHARDFLEET_FLEET: names beginning"),
        ({"environment": {"A": "x"}}, "worker environment 'A': a letter, then letters"),
        ({"security_groups": ["sg"]}, "only together with `vpc`"),
    ],
)
def test_a_wrong_worker_option_is_named(cdk, options, message):
    assert message in refusal(cdk.WorkerOptions, **options)


def test_a_wrong_manager_option_is_named(cdk):
    found = refusal(cdk.ManagerOptions, memory_mb=1, timeout_s=5)

    assert "manager memory_mb: 1 found, 128 to 10240 allowed" in found
    assert "manager timeout_s: 5 found, 10 to 900 allowed" in found


def test_a_handler_folder_that_is_not_there_is_named(cdk, tmp_path):
    assert "no such folder" in refusal(cdk.HandlerCode, folder=tmp_path / "none")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("handler", "'module:function' expected"),
        (":handle", "'module:function' expected"),
        ("clicks:handle", "no module clicks in"),
        ("handler:collect", "handler.py defines no collect"),
    ],
)
def test_a_handler_function_that_is_not_there_is_named(cdk, handler_folder, function, message):
    found = refusal(cdk.HandlerCode, folder=handler_folder, function=function)

    assert found.startswith(f"handler function {function!r}: ")
    assert message in found


def test_a_handler_that_does_not_parse_is_named_with_its_line(cdk, tmp_path):
    (tmp_path / "handler.py").write_text("x = 1\ndef handle(batch:\n", "utf-8")

    found = refusal(cdk.HandlerCode, folder=tmp_path)
    assert "handler.py: line 2: " in found


@pytest.mark.parametrize(
    ("source", "function"),
    [
        ("from deep.inside import run as handle\n", "handler:handle"),
        ("handle = lambda batch: None\n", "handler:handle"),
        ("class handle:\n    def handle(self, batch): ...\n", "handler:handle"),
        ("class handle:\n    handle = print\n", "handler:handle"),
        ("class handle(Base):\n    def started(self): ...\n", "handler:handle"),
        ("async def handle(batch):\n    pass\n", "handler:handle"),
    ],
)
def test_a_handler_may_be_any_name_of_the_module(cdk, tmp_path, source, function):
    (tmp_path / "handler.py").write_text(source, "utf-8")

    assert cdk.HandlerCode(folder=tmp_path, function=function).function == function


@pytest.mark.parametrize(
    ("methods", "line", "message"),
    [
        ("    pass", 1, "the class has no method handle"),
        ("    def handle(self): ...", 2, "handle(): it takes neither"),
        ("    handle = 1\n    def stopping(self, shard): ...", 3, "(shard, until)"),
        ("    handle = 1\n    def stoping(self, shard, until): ...", 1, "did you mean stopping?"),
        ("    handle = 1\n    def __init__(self, bucket): ...", 3, "without arguments"),
    ],
)
def test_a_class_that_no_worker_could_use_is_refused(cdk, tmp_path, methods, line, message):
    (tmp_path / "handler.py").write_text(f"class handle:\n{methods}\n", "utf-8")

    found = refusal(cdk.HandlerCode, folder=tmp_path)
    assert message in found
    assert found.endswith(f"handler.py, line {line})")


def test_a_handler_may_live_in_a_package(cdk, tmp_path):
    (tmp_path / "shop/orders").mkdir(parents=True)
    (tmp_path / "shop/orders/__init__.py").write_text("def handle(batch): ...\n", "utf-8")

    assert cdk.HandlerCode(folder=tmp_path, function="shop.orders:handle")


def test_a_manager_without_the_time_to_wake_shards_in_time_is_refused(a_fleet, cdk):
    config = {"sleep": True, "max_wake_ms": 10_000}

    found = refusal(a_fleet, manager=cdk.ManagerOptions(timeout_s=68), config=config)
    assert "max_wake_ms: 10000 found, which keeps the manager busy for 60000 ms" in found
    assert "at most 58000 allowed: its time-out (68 s) less 10000" in found

    assert a_fleet(config=config).config.max_wake_ms == 10_000


def test_a_shard_that_could_never_be_idle_for_long_enough_is_refused(a_fleet, cdk):
    config = {"sleep": True, "handler_timeout_ms": 1_000}

    found = refusal(a_fleet, worker=cdk.WorkerOptions(timeout_s=300), config=config)
    assert "sleep_after_ms: 300000 found, at most 142500 allowed: half of a turn" in found
    found = refusal(a_fleet, config={**config, "sleep_after_ms": 420_001})
    assert "sleep_after_ms: 420001 found, at most half of max_turn_ms (420000) allowed" in found


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, None),
        # Everything while all sleep; of it Lambda $0.89, $8.19 and $0.15: 6, 56 and 1 s a minute.
        ({"sleep": True}, ("waits up to 60 s", "stays 5 s of each minute", 6.12)),
        ({"sleep": True, "max_wake_ms": 10_000}, ("waits up to 10 s", "stays 55 s of", 13.69)),
        ({"sleep": True, "max_wake_ms": 65_000}, ("up to 65 s", "looks once a minute", 5.52)),
    ],
)
def test_sleep_states_its_price_at_synth(a_fleet, config, words):
    entries = a_fleet(config=config).node.metadata
    told = [str(entry.data) for entry in entries if str(entry.data).startswith("sleep is on")]

    (cost,) = [str(entry.data) for entry in entries if str(entry.data).startswith("expected cost")]

    assert len(told) == (words is not None)
    assert ("while all sleep" in cost) == bool(told)
    if words:
        *about, dollars = words
        assert all(word in told[0] for word in about)
        said = re.findall(r"\$([\d.]+) while all sleep", cost)
        assert float(said[0]) == pytest.approx(dollars, abs=0.05)


@pytest.mark.parametrize(
    ("checkpoint_ms", "price"), [(1_000, "$1.64 a month"), (10_000, "$0.16"), (0, "$8.21")]
)
def test_windows_state_the_price_of_their_state_at_synth(a_fleet, checkpoint_ms, price):
    config = {"tumbling_window_ms": 60_000, "checkpoint_ms": checkpoint_ms}
    found = [str(entry.data) for entry in a_fleet(config=config).node.metadata]
    (told,) = [text for text in found if text.startswith("tumbling windows of 60 s")]

    assert price in told
    assert "a state above 340 KB is refused, for failed_bucket is not set" in told


def test_windows_beside_parallelism_are_refused_at_synth(a_fleet):
    found = refusal(a_fleet, config={"tumbling_window_ms": 60_000, "parallelism": 4})

    assert "parallelism: 4 found, 1 allowed with tumbling_window_ms" in found


def test_variables_that_are_lambdas_own_are_named_all_at_once(cdk):
    found = refusal(
        cdk.WorkerOptions, environment={"AWS_REGION": "x", "_HANDLER": "y", "TARGET": "z"}
    )

    assert "worker environment AWS_REGION: the name is Lambda's own" in found
    assert "worker environment _HANDLER: the name is Lambda's own" in found
    assert "TARGET" not in found


def notes_of(fleet):
    return {
        entry.type: str(entry.data)
        for entry in fleet.node.metadata
        if "executions at" in str(entry.data)
    }


@pytest.mark.parametrize(
    ("workers", "kind", "words"),
    [
        (9, None, ""),
        (
            10,
            "aws:cdk:info",
            "11 executions at a time: Lambda allows an account 1,000 by default, a new one 10",
        ),
        (1_000, "aws:cdk:warning", "1001 executions at a time: Lambda allows an account 1,000 by"),
    ],
)
def test_a_fleet_beyond_an_accounts_concurrency_is_told(a_fleet, workers, kind, words):
    told = notes_of(a_fleet(config={"max_workers": workers}))

    assert told.keys() == ({kind} if kind else set())
    assert all(words in each for each in told.values())


@pytest.mark.parametrize(
    ("source", "contract", "message"),
    [
        ("def handle(a, b, c): ...", "auto", "handle(a, b, c): it takes neither"),
        ("def handle(batch, /, *, limit): ...", "auto", "it takes neither"),
        ("async def handle(): ...", "auto", "handle(): it takes neither"),
        ("def handle(*args, **named): ...", "auto", "it takes both"),
        ("def handle(event, context): ...", "native", "calls it with (batch)"),
    ],
)
def test_a_handler_that_a_worker_could_not_call_is_refused_with_its_line(
    cdk, tmp_path, source, contract, message
):
    (tmp_path / "handler.py").write_text(f"x = 1\n{source}\n", "utf-8")

    found = refusal(cdk.HandlerCode, folder=tmp_path, contract=contract)
    assert message in found
    assert found.endswith("handler.py, line 2)")


@pytest.mark.parametrize(
    ("source", "contract"),
    [
        ("def handle(batch, limit=3, *, flag=True): ...", "auto"),
        ("def handle(event, context): ...", "event"),
        ("def handle(*args): ...", "native"),
        # What a decorator makes of it is seen when it is loaded.
        ("import functools\n@functools.cache\ndef handle(a, b, c): ...", "auto"),
        ("def handle(a, b, c): ...\ndef handle(batch): ...", "auto"),
    ],
)
def test_a_handler_that_a_worker_can_call_is_taken(cdk, tmp_path, source, contract):
    (tmp_path / "handler.py").write_text(source, "utf-8")

    assert cdk.HandlerCode(folder=tmp_path, contract=contract)


def test_a_wrong_filter_is_refused_by_its_field(a_fleet):
    found = refusal(a_fleet, config={"filters": '[{"data": {"kind": "order"}}]'})

    assert 'filters[0].data.kind: "order" found; allowed: a list' in found
