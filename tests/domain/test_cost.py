"""Estimates and the price of what was used."""

import math
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.cost.estimate import (
    HOURS_PER_MONTH,
    METRICS,
    Consumption,
    Setup,
    asleep_per_month,
    per_month,
    price_of,
    stream_per_month,
    workers_for,
)
from shardfleet.domain.cost.prices import PRICES, Prices, changed_prices
from shardfleet.errors import ConfigurationError
from shardfleet_ops.template.spark import worker_size

PAGE = Path(__file__).parents[2] / "docs/cost.md"


def a_config(**options):
    values = {"fleet": "f", "stream_arn": "a", "lease_table": "l", "state_table": "s"}
    return FleetConfig(**values | options)


def estimate(shards, config=None, **setup):
    return per_month(config or a_config(), Setup(shards=shards, **setup))


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


def test_the_figures_of_the_page_about_cost_come_out():
    """docs/cost.md, "Beside other ways": per month, by list prices of 2026-11-20."""
    config = a_config(leases_per_worker=8, max_workers=1_000)
    of_manager = estimate(0, config).by_item["lambda"]
    assert of_manager == pytest.approx(8.5, abs=0.3)
    eight = estimate(8, config, worker_mb=512).by_item["lambda"] - of_manager
    assert eight / 8 == pytest.approx(2.20, abs=0.05)
    full = estimate(8, config, worker_mb=1_024).by_item["lambda"] - of_manager
    assert full / 8 == pytest.approx(4.40, abs=0.1)
    single = estimate(1, config, worker_mb=256).by_item["lambda"] - of_manager
    assert single == pytest.approx(8.9, abs=0.2)
    assert estimate(8, config).by_item["step_functions"] == pytest.approx(0.16, abs=0.02)
    often = estimate(8, a_config(checkpoint_ms=1_000)).by_item["dynamodb"]
    seldom = estimate(8, a_config(checkpoint_ms=10_000)).by_item["dynamodb"]
    assert (often - seldom) / 8 == pytest.approx(1.65 - 0.5, abs=0.1)
    assert stream_per_month(1) == pytest.approx(10.95)


def test_the_page_about_cost_says_what_the_estimate_is_made_of():
    """To the cent; "logs, scheduler" are one line, and a run of the manager a minute."""
    told = dict(
        re.findall(r"^\| (`[\w`, ]+`) \| ([\d.]+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    )
    costs = dict(estimate(8, alarms=36, dashboards=1).by_item)
    runs_a_month = 730 * 60
    assert costs["scheduler"] == pytest.approx(runs_a_month * PRICES.scheduled_run)
    costs["logs`, `scheduler"] = costs.pop("logs") + costs.pop("scheduler")
    assert {item: round(dollars, 2) for item, dollars in costs.items()} == {
        item: float(told[f"`{item}`"]) for item in costs
    }


def test_each_unit_of_the_estimate_is_counted_by_its_rule():
    """730 hours of three shards and two workers, in units: every price but one is nothing."""
    config = a_config(failover_ms=30_000, checkpoint_ms=5_000, max_turn_ms=300_000)
    setup = Setup(shards=3, workers=2, worker_mb=1_024, manager_mb=256)
    none = changed_prices(dict.fromkeys(Prices.__struct_fields__[2:], 0))

    def units(price):
        return per_month(config, setup, replace(none, **{price: 1.0})).total

    month_s, runs, turns = 2_628_000, 43_800, 2 * 8_760
    run_s = config.manager_run_ms / 1_000
    manager_turns = runs * -(-config.manager_run_ms // config.cycle_ms)
    assert units("lambda_gb_second") == pytest.approx(2 * month_s + runs * (run_s + 1) / 4)
    assert units("lambda_request") == runs + turns
    assert units("transition") == 2 * turns
    assert units("scheduled_run") == runs
    assert units("metric_month") == pytest.approx(27)
    # Each fetches, renews each 10 s, and checkpoints each 5 s of 1.5 leases.
    ticks = month_s / 10
    scans = max(manager_turns, runs * run_s * 1_000 * 3 / 30_000)
    read = scans * 0.5 + runs * run_s + manager_turns * 20 + 2 * (ticks * 1.5) + turns * 4
    assert units("table_read_unit") == pytest.approx(read + turns * 1.5 * 5, rel=1e-6)
    written = manager_turns * (6.5 + 3 * 0.12) + 3 * month_s / 5 + 2 * ticks / 3
    assert units("table_write_unit") == pytest.approx(written, rel=1e-6)
    minutes = 2 * month_s * 1_000 / config.metrics_ms
    assert units("log_gb") * 1e9 == pytest.approx((manager_turns + minutes + turns) * 2_200)


def test_asleep_the_manager_runs_each_minute_for_as_long_as_it_lingers_and_a_second():
    config = a_config(sleep=True)
    gb_s = 43_800 * (config.linger_ms / 1_000 + 1) / 4
    dollars = gb_s * PRICES.lambda_gb_second + 43_800 * PRICES.lambda_request
    assert asleep_per_month(config, manager_mb=256) == pytest.approx(dollars)


BUSY = (0.05, 0.2, 0.5, 1.0)


def of_mapping(busy):
    """Dollars a shard: a call a second of a handler of 256 MB; polling is free."""
    seconds = HOURS_PER_MONTH * 3_600
    return seconds * (busy / 4 * PRICES.lambda_gb_second + PRICES.lambda_request)


def of_fleet(shards, busy):
    """Dollars a shard, with everything: a plain handler's worker has one call at a time."""
    workers = math.ceil(shards * max(busy, 1 / 8))
    found = estimate(shards, workers=workers, worker_mb=256, alarms=36, dashboards=1)
    return found.total / shards


@pytest.mark.parametrize("shards", [8, 80, 800, 8_000])
@pytest.mark.parametrize("busy", BUSY)
def test_with_a_plain_handler_the_mapping_is_cheaper_however_busy(shards, busy):
    assert of_mapping(busy) < of_fleet(shards, busy)


def test_the_figures_of_the_page_are_computed():
    """docs/cost.md, beside other ways."""
    page = PAGE.read_text("utf-8")
    figures = [[of_mapping(busy) for busy in BUSY]]
    figures += [[of_fleet(shards, busy) for busy in BUSY] for shards in (8, 800)]
    for row in figures:
        assert " / ".join(f"${dollars:.2f}" for dollars in row) + " per shard" in page
    one_for_eight = [of_fleet(shards, 1 / 8) for shards in (8, 800)]
    assert " / ".join(f"${dollars:.2f}" for dollars in one_for_eight) + " per shard" in page
    idle, whole = of_mapping(0), of_mapping(1)
    evens = [round(100 * (each - idle) / (whole - idle)) for each in one_for_eight]
    assert f"from {evens[0]} % busy on, for the 800 from {evens[1]} %" in page
    assert f"up to ${METRICS * PRICES.metric_month:.2f} per fleet for metrics" in page


def test_the_estimate_is_what_a_fleet_on_the_embedded_aws_used():
    """Six minutes of 4 busy shards, 1 worker in turns of a minute, 2026-11-21: from its ledger."""
    manager = Consumption(
        mb_ms=87_718_400, requests=6, read_tenths=7_425, write_tenths=1_220, log_bytes=40_285
    )
    worker = Consumption(
        mb_ms=184_627_712, requests=6, read_tenths=3_160, write_tenths=13_090, log_bytes=20_618
    )
    config = a_config(max_turn_ms=60_000, leases_per_worker=4)
    expected = per_month(config, Setup(shards=4)).by_item
    seconds_a_month = 730 * 3_600
    used = price_of(manager + worker, metric_days=0).by_item
    for item in ("lambda", "dynamodb", "logs"):
        assert used[item] / 360 * seconds_a_month == pytest.approx(expected[item], rel=0.25), item


def test_more_shards_and_more_often_cost_more_and_monitoring_is_counted():
    assert estimate(16).total > estimate(8).total > estimate(0).total > 0
    slow = a_config(failover_ms=30_000, checkpoint_ms=60_000)
    assert estimate(8, slow).by_item["dynamodb"] < estimate(8).by_item["dynamodb"]
    watched = estimate(8, alarms=20, dashboards=1)
    assert watched.total - estimate(8).total == pytest.approx(20 * 0.1 + 0.5 + 3)


def test_a_worker_reads_its_slot_at_each_renewal_and_writes_it_at_each_third():
    """730 hours: 876,000 renewals at 3 s, 438,000 at 6 s; a record is 1.5 read units."""

    def of_worker(failover_ms):
        config = a_config(failover_ms=failover_ms, checkpoint_ms=1_000)
        with_it, without = (estimate(4, config, workers=count) for count in (1, 0))
        return with_it.by_item["dynamodb"] - without.by_item["dynamodb"]

    renewal = 1.5 * PRICES.table_read_unit + PRICES.table_write_unit / 3
    assert of_worker(9_000) - of_worker(18_000) == pytest.approx(438_000 * renewal, rel=1e-5)


def test_asleep_a_fleet_costs_a_fraction():
    config = a_config(sleep=True)
    assert asleep_per_month(config, manager_mb=256) < estimate(1, config).by_item["lambda"] / 10


def test_prices_have_their_date_and_can_be_ones_own():
    assert PRICES.as_of == "2026-11-20"
    mine = changed_prices({"as_of": "2027-01-01", "region": "eu-central-1", "transition": 0})
    assert mine == replace(PRICES, as_of="2027-01-01", region="eu-central-1", transition=0.0)
    assert len(Prices.__struct_fields__) == 18


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
