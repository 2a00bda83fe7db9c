"""What an acceptance is called, and what it may cost at most."""

import re
from pathlib import Path

import pytest

from shardfleet.config import FleetConfig
from shardfleet.domain.cost.usage import HOURS_PER_MONTH
from shardfleet.errors import ConfigurationError
from shardfleet_local.acceptance.plan import SHORT, WHOLE, bucket_name, checked_name, price
from shardfleet_ops.cost.model import Setup, State, per_month

COST_PAGE = Path(__file__).resolve().parents[3] / "docs/cost.md"


@pytest.mark.parametrize("size", [SHORT, WHOLE])
def test_a_run_costs_less_than_a_dollar_even_if_all_is_billed_for_an_hour(size):
    assert 0 < price(size).total < 1


def test_the_price_has_the_fleet_that_the_cost_model_knows_for_an_hour():
    config = FleetConfig(
        fleet="f", stream_arn="s", lease_table="l", state_table="t", **WHOLE.config
    )
    setup = Setup(shards=7, worker_timeout_ms=60_000)

    of_fleet = per_month(config, setup, state=State.AWAKE).by_item

    for item in ("lambda", "dynamodb", "step_functions", "metrics"):
        assert price(WHOLE).by_item[item] == pytest.approx(of_fleet[item] / HOURS_PER_MONTH)


def test_the_shards_are_those_of_the_list_of_prices():
    per_hour = float(re.search(r"`shard_hour` \| ([\d.]+)", COST_PAGE.read_text("utf-8"))[1])

    # Four, two of a split, one of a merge; 100,000 payload units beside them are a tenth of a cent.
    assert price(WHOLE).by_item["stream"] == pytest.approx(7 * per_hour, abs=0.002)


def test_a_bucket_name_is_one_that_s3_takes_wherever_it_is():
    name = bucket_name(
        "shardfleet-acceptance-0a1b2c", account_id="111122223333", region="ap-southeast-2"
    )

    assert re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", name)  # S3's naming rules


@pytest.mark.parametrize(
    "name", ["ShardFleetStack", "shardfleet-acceptance-", "shardfleet-acceptance-0a1b2c-more", ""]
)
def test_what_no_run_has_made_cannot_be_named_for_destruction(name):
    with pytest.raises(ConfigurationError, match="nothing else is destroyed"):
        checked_name(name)
