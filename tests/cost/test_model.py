"""The model of cost: each unit by its rule, the pages by the model."""

import re

import pytest
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.cost.prices import PRICES, Prices, changed_prices
from shardfleet.domain.cost.usage import Consumption, price_of
from shardfleet.errors import ConfigurationError
from shardfleet_ops.cost.model import (
    Setup,
    State,
    StreamMode,
    fargate_per_month,
    mapping_per_month,
    per_month,
    processes_per_month,
    stream_per_month,
    workers_for,
)
from shardfleet_ops.template.spark import worker_size
from tests.cost import page
from tests.cost.fleets import COUNTED, OF_TWO_PROCESSES

# As `make cost` counts them: a manager's run, writes of a turn of the manager, and of a worker.
RUN_S, WRITES, WRITES_A_SHARD = 1.0, 6.5, 0.12
OF_TURN, OF_ADOPTION = 6.5, 2.1


def a_config(**options):
    values = {"fleet": "f", "stream_arn": "a", "lease_table": "l", "state_table": "s"}
    return FleetConfig(**values | options)


def estimate(shards, config=None, state=State.CALM, **setup):
    return per_month(config or a_config(), Setup(shards=shards, **setup), state=state)


def test_every_unit_has_its_price():
    hour = Consumption(
        mb_ms=512 * 3_600_000,
        requests=1_000_000,
        transitions=1_000_000,
        read_tenths=10_000_000,
        write_tenths=10_000_000,
        log_bytes=1_000_000_000,
        scheduled_runs=1_000_000,
    )
    costs = price_of(hour, metric_days=30.416667).by_item
    assert costs["lambda"] == pytest.approx(1_800 * 0.0000133334 + 0.20)
    assert costs["step_functions"] == pytest.approx(25)
    assert costs["dynamodb"] == pytest.approx(0.125 + 0.625)
    assert costs["metrics"] == pytest.approx(0.30)
    assert costs["logs"] == pytest.approx(0.50)
    assert costs["scheduler"] == pytest.approx(1)
    assert price_of(Consumption(), metric_days=0).total == 0


def test_consumptions_add_up_field_by_field():
    one = Consumption(**{name: number for number, name in enumerate(Consumption.__struct_fields__)})
    assert sum([one, one], Consumption()) == one + one
    assert (one + one).scheduled_runs == 2 * one.scheduled_runs


@pytest.mark.parametrize(
    ("shards", "options", "workers"),
    [
        (0, {}, 0),
        (1, {}, 1),
        (8, {}, 1),
        (9, {}, 2),
        (9, {"min_workers": 4}, 4),
        (900, {"max_workers": 16}, 16),
    ],
)
def test_so_many_shards_need_so_many_workers(shards, options, workers):
    assert workers_for(a_config(**options), shards) == workers


NONE = changed_prices(dict.fromkeys(Prices.__struct_fields__[2:], 0))
MONTH_S, RUNS = 2_628_000, 43_800


def units(price, config, setup, state):
    """Return the units of a month: every price but one is nothing."""
    return per_month(config, setup, state=state, prices=replace(NONE, **{price: 1.0})).total


@pytest.mark.parametrize(
    ("state", "stays_s", "manager_turns"),
    [(State.AWAKE, 57, 3 * RUNS), (State.CALM, 0, RUNS), (State.ASLEEP, 5, RUNS)],
)
def test_each_unit_of_the_manager_is_counted_by_its_rule(state, stays_s, manager_turns):
    config, setup = a_config(sleep=True), Setup(shards=3, workers=0, manager_mb=512)
    found = {
        price: units(price, config, setup, state)
        for price in ("lambda_request", "transition", "scheduled_run", "metric_month")
    }
    assert found == {
        "lambda_request": RUNS,
        "transition": 0,
        "scheduled_run": RUNS,
        "metric_month": 3 if state is State.ASLEEP else 10,
    }
    run_s = units("lambda_gb_second", config, setup, state) / (RUNS / 2)
    assert run_s == pytest.approx(max(stays_s, RUN_S))
    written = units("table_write_unit", config, setup, state)
    assert written == pytest.approx(manager_turns * (WRITES + 3 * WRITES_A_SHARD), rel=1e-5)


def test_each_unit_of_a_worker_is_counted_by_its_rule():
    """730 hours of two workers, in turns of five minutes, of three shards."""
    config = a_config(failover_ms=30_000, checkpoint_ms=5_000, max_turn_ms=300_000)
    turns, ticks = 2 * 8_760, MONTH_S / 10

    def of_workers(price):
        both = (Setup(shards=3, workers=count, worker_mb=1_024) for count in (2, 0))
        more, less = (units(price, config, setup, State.CALM) for setup in both)
        return more - less

    assert of_workers("lambda_gb_second") == pytest.approx(2 * MONTH_S)
    assert of_workers("lambda_request") == turns
    assert of_workers("transition") == 2 * turns
    # A lease is written each 5 s, before it would be renewed; a slot each 30 s.
    adopted = turns * OF_TURN + 3 * turns / 2 * OF_ADOPTION
    written = 3 * MONTH_S / 5 + 2 * ticks / 3 + adopted
    assert of_workers("table_write_unit") == pytest.approx(written)


def test_processes_cost_what_their_tables_do():
    """Two of them, four leases: besides leases and slots each shows that it lives, one leads."""
    config = a_config(failover_ms=30_000, checkpoint_ms=5_000, cycle_ms=20_000)
    setup, ticks, turns = Setup(shards=4, workers=2), MONTH_S / 10, MONTH_S / 20
    only_writes = replace(NONE, table_write_unit=1.0)
    written = processes_per_month(config, setup, prices=only_writes).total
    of_manager = turns * (WRITES + 4 * WRITES_A_SHARD)
    adopted = MONTH_S // 840 * (2 * OF_TURN + 4 * OF_ADOPTION)
    kept = 4 * MONTH_S / 5 + 2 * ticks / 3 + 3 * ticks
    assert written == pytest.approx(kept + adopted + of_manager)
    costs = processes_per_month(config, setup)
    assert {name for name, dollars in costs.by_item.items() if dollars} == {"dynamodb", "storage"}


def test_a_renewal_stores_progress_so_a_lease_is_written_by_what_is_due_first():
    """Renewed each 3.1 s of the 3.3 s, by default: a checkpoint of 5 s adds no write."""
    seconds = {}
    for checkpoint_ms in (1_000, 5_000, 60_000):
        config = a_config(checkpoint_ms=checkpoint_ms)
        of_eight, of_none = (
            units("table_write_unit", config, Setup(shards=count, workers=1), State.CALM)
            - RUNS * count * WRITES_A_SHARD
            - MONTH_S // 840 * count * OF_ADOPTION
            for count in (8, 0)
        )
        seconds[checkpoint_ms] = MONTH_S * 8 / (of_eight - of_none)
    assert seconds[1_000] == pytest.approx(1)
    assert seconds[5_000] == seconds[60_000] == pytest.approx(3.333 * 15 / 16, rel=1e-3)


def test_a_stream_costs_by_its_mode():
    """Eight shards are 8 x 730 x $0.015; 100 GB read are $4 on demand, three fifths less in
    Advantage mode, which has no charge for a stream either."""
    assert stream_per_month(8, gb_out=100) == pytest.approx(87.6)
    assert stream_per_month(8, mode=StreamMode.ON_DEMAND, gb_out=100) == pytest.approx(29.2 + 4)
    assert stream_per_month(8, mode=StreamMode.ADVANTAGE, gb_out=100) == pytest.approx(1.6)


def test_the_mapping_and_tasks_cost_by_their_lists():
    """A call a second: 2.628 million at $0.20; half busy, 256 MB: 328,500 GB-seconds."""
    half = mapping_per_month(1, busy=0.5, handler_mb=256)
    assert half == pytest.approx(2.628 * 0.2 + 328_500 * 0.0000133334)
    assert fargate_per_month(2, cpu=0.25, memory_gb=0.5) == pytest.approx(14.42, abs=0.005)


def test_metrics_alarms_and_dashboard_are_counted():
    watched = estimate(8, alarm_metrics=20, composites=2, dashboards=1).by_item
    assert (watched["alarms"], watched["dashboard"]) == (pytest.approx(20 * 0.1 + 2 * 0.5), 3)
    shards = estimate(8, a_config(metrics="shards")).by_item["metrics"]
    assert shards == pytest.approx((30 + 3 * 8) * 0.3)


@pytest.mark.parametrize("fleet", [*COUNTED, OF_TWO_PROCESSES], ids=lambda fleet: fleet.name)
def test_a_fleet_costs_little_beside_its_dashboard(fleet):
    assert fleet.costs.total - fleet.costs.by_item["dashboard"] <= fleet.most


# --- the pages


@pytest.mark.parametrize(
    ("file", "made"),
    [(page.PAGE, page.tables), (page.README, page.tables_of_readme)],
    ids=["cost", "README"],
)
def test_the_tables_of_the_pages_are_the_models(file, made):
    text = file.read_text("utf-8")
    assert page.written(text, made()) == text, "run: .venv/bin/python -m tests.cost.page"


def test_no_page_says_an_amount_that_the_model_does_not_make():
    known = page.figures()
    for file in (page.README, *page.PAGE.parent.glob("*.md")):
        said = set(re.findall(r"\$\d[\d,]*(?:\.\d+)?", file.read_text("utf-8")))
        assert said <= known, file.name


@pytest.mark.parametrize("shards", [8, 80, 800, 8_000])
@pytest.mark.parametrize("busy", page.BUSY)
def test_with_a_plain_handler_the_mapping_is_cheaper_however_busy(shards, busy):
    mapping = mapping_per_month(1, busy=busy, handler_mb=page.SMALL_MB)
    assert mapping < page.beside_mapping(shards, busy=busy, at_once=1)


def test_the_mapping_is_cheaper_for_any_handler_that_is_busy_a_tenth_of_the_time():
    mapping = mapping_per_month(1, busy=0.1, handler_mb=page.SMALL_MB)
    assert mapping < page.beside_mapping(8_000, busy=0.1, at_once=8)


def test_prices_have_their_date_and_can_be_ones_own():
    assert PRICES.as_of == "2026-11-20"
    mine = changed_prices({"as_of": "2027-01-01", "region": "eu-central-1", "transition": 0})
    assert mine == replace(PRICES, as_of="2027-01-01", region="eu-central-1", transition=0.0)
    assert len(Prices.__struct_fields__) == 26


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"coffee": 3}, "coffee: no such price; there are: as_of, region"),
        ({"transition": "dear"}, "transition: 'dear' found, dollars expected"),
        ({"transition": -1}, "transition: -1 found"),
        ({"transition": True}, "transition: True found"),
    ],
)
def test_a_price_that_is_none_is_refused(given, message):
    with pytest.raises(ConfigurationError, match=message):
        changed_prices(given)


@pytest.mark.parametrize(
    ("memory", "gigabytes"), [("50g", 55), ("14g", 16), ("18432m", 20), ("10g", 11), ("1g", 2)]
)
def test_a_spark_worker_is_as_large_as_its_memory_and_a_tenth_in_whole_gigabytes(memory, gigabytes):
    """By ``spark.executor.memoryOverheadFactor``, 0.1 unless told otherwise."""
    assert worker_size({"spark.executor.memory": memory}, "executor")[1] == gigabytes
