"""From the name of a stack to its fleets; answers have the shapes that botocore's model knows."""

from datetime import UTC, datetime

import boto3
import pytest
from botocore.stub import Stubber

from shardfleet.config import FleetConfig
from shardfleet.errors import ConfigurationError
from shardfleet_ops.cli.fleets import FLEET, NESTED_STACK, FleetName, find_fleet

AT = datetime(2026, 11, 22, tzinfo=UTC)
HASH = "0A1B2C3D"


def resource(kind, logical, physical=None, status="CREATE_COMPLETE"):
    made = {"PhysicalResourceId": physical} if physical else {}
    return {
        "LogicalResourceId": logical,
        "ResourceType": kind,
        "LastUpdatedTimestamp": AT,
        "ResourceStatus": status,
        **made,
    }


def marker(construct, manager):
    return resource(FLEET, f"{construct}FirstRun{HASH}", manager)


def alarm(construct, name):
    return resource("AWS::CloudWatch::Alarm", f"{construct}MonitoringLag{HASH}", name)


def config_of(name):
    return FleetConfig(
        fleet=name,
        stream_arn="arn:aws:kinesis:eu-central-1:123456789012:stream/clicks",
        lease_table=f"{name}-leases",
        state_table=f"{name}-state",
        worker_function=f"{name}-worker",
    )


class Account:
    """What is answered, in the order in which it is asked."""

    def __init__(self, monkeypatch):
        self.stubs = {name: self._stub(name) for name in ("cloudformation", "lambda")}
        monkeypatch.setattr(
            boto3.session.Session, "client", lambda _, service: self.stubs[service].client
        )

    def _stub(self, service):
        stub = Stubber(boto3.client(service, region_name="eu-central-1"))
        stub.activate()
        return stub

    def stack(self, name, *pages):
        for number, page in enumerate(pages):
            asked = {"StackName": name} | ({"NextToken": str(number)} if number else {})
            more = {"NextToken": str(number + 1)} if number + 1 < len(pages) else {}
            answer = {"StackResourceSummaries": list(page), **more}
            self.stubs["cloudformation"].add_response("list_stack_resources", answer, asked)

    def manager(self, function, fleet):
        self.stubs["lambda"].add_response(
            "get_function_configuration",
            {"Environment": {"Variables": config_of(fleet).to_env()}},
            {"FunctionName": function},
        )


@pytest.fixture
def account(monkeypatch):
    return Account(monkeypatch)


def test_the_only_fleet_of_a_stack_needs_no_name_of_its_own(account):
    account.stack("Clicks", [resource("AWS::SQS::Queue", "Other", "q"), marker("Fleet", "m-1")])
    account.manager("m-1", "clicks")

    found = find_fleet(FleetName("Clicks"))

    assert (found.config, found.manager) == (config_of("clicks"), "m-1")


def test_a_fleet_on_a_later_page_is_found(account):
    """CloudFormation gives 100 resources a page; a watched fleet has more than half of them."""
    account.stack("Clicks", [resource("AWS::SQS::Queue", "Other", "q")], [marker("Fleet", "m-1")])
    account.manager("m-1", "clicks")

    assert find_fleet(FleetName("Clicks")).manager == "m-1"


def two_fleets(account):
    account.stack(
        "Shop",
        [
            marker("Fleet", "m-1"),
            marker("FleetTwo", "m-2"),
            alarm("Fleet", "lag-1"),
            alarm("FleetTwo", "lag-2"),
        ],
    )
    account.manager("m-1", "shop")
    account.manager("m-2", "shop-fleettwo")


@pytest.mark.parametrize(("name", "lag"), [("shop", "lag-1"), ("shop-fleettwo", "lag-2")])
def test_of_two_fleets_each_is_found_by_its_name_with_what_is_its_own(account, name, lag):
    two_fleets(account)

    found = find_fleet(FleetName("Shop", name))

    assert found.config.fleet == name
    assert found.of_type("AWS::CloudWatch::Alarm") == [lag]


def test_of_two_fleets_one_must_be_named(account):
    two_fleets(account)

    with pytest.raises(ConfigurationError) as error:
        find_fleet(FleetName("Shop"))

    expected = "--stack Shop: it has 2 fleets, say which with --fleet: shop, shop-fleettwo"
    assert str(error.value) == expected


def test_a_name_that_no_fleet_has_is_refused_with_those_that_there_are(account):
    two_fleets(account)

    with pytest.raises(ConfigurationError) as error:
        find_fleet(FleetName("Shop", "orders"))

    expected = "--fleet orders: not in the stack Shop, whose fleets are: shop, shop-fleettwo"
    assert str(error.value) == expected


def test_a_fleet_in_a_nested_stack_is_found(account):
    nested = "arn:aws:cloudformation:eu-central-1:123456789012:stack/Shop-Ingest/1"
    account.stack("Shop", [resource(NESTED_STACK, "Ingest", nested)])
    account.stack(nested, [marker("Fleet", "m-1")])
    account.manager("m-1", "shop-ingest")

    assert find_fleet(FleetName("Shop")).config.fleet == "shop-ingest"


def test_a_stack_without_a_fleet_is_one_message(account):
    account.stack("Web", [resource("AWS::S3::Bucket", "Pages", "pages")])

    with pytest.raises(ConfigurationError, match="--stack Web: it holds no fleet"):
        find_fleet(FleetName("Web"))


def test_a_stack_that_is_not_there_is_one_message(account):
    account.stubs["cloudformation"].add_client_error(
        "list_stack_resources", "ValidationError", "Stack with id Web does not exist"
    )

    with pytest.raises(ConfigurationError, match="--stack Web: Stack with id Web does not exist"):
        find_fleet(FleetName("Web"))


def test_a_fleet_that_is_being_deployed_is_not_there_yet(account):
    made = resource(FLEET, f"FleetFirstRun{HASH}", status="CREATE_IN_PROGRESS")
    account.stack("Clicks", [made])

    with pytest.raises(ConfigurationError, match=r"not there yet \(CREATE_IN_PROGRESS\)"):
        find_fleet(FleetName("Clicks"))


def test_a_manager_that_is_gone_is_named(account):
    account.stack("Clicks", [marker("Fleet", "m-1")])
    account.stubs["lambda"].add_client_error(
        "get_function_configuration", "ResourceNotFoundException", "Function not found: m-1"
    )

    with pytest.raises(ConfigurationError, match="its lease manager m-1 cannot be asked"):
        find_fleet(FleetName("Clicks"))
