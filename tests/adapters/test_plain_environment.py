"""What an environment says by itself is what botocore makes of it; where it may not be, it says so.

Expected values are botocore's: its regions, endpoints, models and certificates.
"""

import json
import os
import subprocess
import sys
from urllib.parse import parse_qs, urlsplit

import botocore.session
import pytest
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies

from shardfleet.adapters.http.plain_environment import (
    DYNAMODB,
    KINESIS,
    STATES,
    plain_environment,
)
from shardfleet.adapters.kinesis.wire import open_wire
from shardfleet.config import FleetConfig
from shardfleet.domain.reading.pages import StartingPosition, StartKind
from tests.adapters.loopback import Service, error, serving

LAMBDA = {
    "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_SESSION_TOKEN": "token",
    "AWS_REGION": "eu-central-1",
    "AWS_DEFAULT_REGION": "eu-central-1",
    "AWS_EXECUTION_ENV": "AWS_Lambda_python3.14",
    "AWS_LAMBDA_FUNCTION_NAME": "worker",
    "AWS_XRAY_CONTEXT_MISSING": "LOG_ERROR",
}
REGIONS = [
    region
    for region in botocore.session.Session().get_available_regions("kinesis")
    if not region.startswith("aws-")
]


def arn_in(region, partition="aws"):
    return f"arn:{partition}:kinesis:{region}:123456789012:stream/orders"


@pytest.fixture
def session(monkeypatch, tmp_path):
    """Return what makes botocore's session of an environment, and of nothing else."""

    def made(env):
        for name in os.environ:
            if name.startswith("AWS_") or name.lower().endswith("_proxy"):
                monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(tmp_path))
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        return botocore.session.Session()

    return made


def told_by(sdk, region):
    """Return endpoints, regions and services of stream and tables as botocore has them."""
    stream = sdk.create_client("kinesis", region_name=region).generate_presigned_url(
        "get_records", Params={"StreamARN": arn_in(region), "ShardIterator": "-"}
    )
    iterator = sdk.create_client("kinesis", region_name=region).generate_presigned_url(
        "get_shard_iterator",
        Params={"StreamARN": arn_in(region), "ShardId": "s", "ShardIteratorType": "LATEST"},
    )
    assert urlsplit(stream).netloc == urlsplit(iterator).netloc
    control = sdk.create_client("kinesis", region_name=region).generate_presigned_url(
        "describe_stream_summary", Params={"StreamARN": arn_in(region)}
    )
    listing = sdk.create_client("kinesis", region_name=region).generate_presigned_url(
        "list_shards", Params={"StreamARN": arn_in(region)}
    )
    assert urlsplit(control).netloc == urlsplit(listing).netloc
    by_name = sdk.create_client("kinesis", region_name=region).generate_presigned_url(
        "list_shards", Params={"NextToken": "more"}
    )
    execution = sdk.create_client("stepfunctions").generate_presigned_url(
        "describe_execution", Params={"executionArn": "arn"}
    )
    table = sdk.create_client("dynamodb").generate_presigned_url(
        "get_item", Params={"TableName": "none", "Key": {}}
    )
    urls = (stream, control, by_name, table, execution)
    return [told for url in urls for told in _parts(url)]


def _parts(url):
    parts = urlsplit(url)
    _, _, region, service, _ = parse_qs(parts.query)["X-Amz-Credential"][0].split("/")
    return f"{parts.scheme}://{parts.netloc}", region, service


def told_by_itself(env, region):
    plain = plain_environment(env)
    places = (
        *(plain.stream(arn_in(region), kind) for kind in ("data", "control")),
        *(plain.of_region(KINESIS, region), plain.of_region(DYNAMODB), plain.of_region(STATES)),
    )
    return [told for at in places for told in (at.url.rstrip("/"), at.region, at.service.name)]


@pytest.mark.parametrize("region", REGIONS)
def test_endpoints_and_regions_are_botocores(session, region):
    env = {**LAMBDA, "AWS_DEFAULT_REGION": region}
    assert told_by_itself(env, region) == told_by(session(env), region)


@pytest.mark.parametrize(
    "given",
    [
        {"AWS_ENDPOINT_URL": "http://127.0.0.1:4566"},
        {"AWS_ENDPOINT_URL": "http://127.0.0.1:4566/"},
        {"AWS_ENDPOINT_URL_KINESIS": "https://localhost:1"},
        {"AWS_ENDPOINT_URL": "http://localhost:2", "AWS_ENDPOINT_URL_DYNAMODB": "http://[::1]:3"},
        {"AWS_ENDPOINT_URL_SFN": "http://localhost:4"},
        {"AWS_REGION": "us-west-2"},
    ],
    ids=str,
)
def test_endpoints_that_are_given_count_as_they_do_for_botocore(session, given):
    env = {**LAMBDA, **given}
    assert told_by_itself(env, "us-west-2") == told_by(session(env), "us-west-2")


def test_keys_and_certificates_are_botocores(session, tmp_path):
    plain = plain_environment({**LAMBDA, "HOME": str(tmp_path)})
    keys = session(LAMBDA).get_credentials().get_frozen_credentials()
    assert tuple(plain.keys) == (keys.access_key, keys.secret_key, keys.token)
    assert plain.keys.get_frozen_credentials() == plain.keys
    assert plain.bundle == get_cert_path(verify=True)
    given = plain_environment({**LAMBDA, "AWS_CA_BUNDLE": "/a", "REQUESTS_CA_BUNDLE": "/b"})
    assert given.bundle == "/a"


@pytest.mark.parametrize(
    ("service", "sdks"),
    [(KINESIS, "kinesis"), (DYNAMODB, "dynamodb"), (STATES, "stepfunctions")],
    ids=lambda service: getattr(service, "name", service),
)
def test_services_are_described_as_in_botocores_models(service, sdks):
    model = botocore.session.Session().get_service_model(sdks)
    assert service.target == model.metadata["targetPrefix"]
    assert service.json_version == model.metadata["jsonVersion"]
    assert service.name == model.signing_name == model.endpoint_prefix
    assert (service.variable or service.name) == model.service_id.lower()


@pytest.mark.parametrize(
    "given",
    [
        *({"AWS_PROFILE": "p"}, {"AWS_USE_FIPS_ENDPOINT": "true"}, {"AWS_ACCOUNT_ID": "1"}),
        *({"AWS_CONFIG_FILE": "/etc/aws"}, {"AWS_CREDENTIAL_EXPIRATION": "soon"}),
        *({"AWS_USE_DUALSTACK_ENDPOINT": "true"}, {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}),
        *({"AWS_ACCESS_KEY_ID": ""}, {"AWS_SECRET_ACCESS_KEY": ""}, {"AWS_DEFAULT_REGION": ""}),
        *({"AWS_DEFAULT_REGION": "cn-north-1"}, {"AWS_DEFAULT_REGION": "us-gov-west-1"}),
        *({"HTTPS_PROXY": "http://proxy"}, {"all_proxy": "x"}, {"BOTO_CONFIG": "/etc/boto"}),
        {"HTTPS_PROXY": "http://proxy", "NO_PROXY": "*"},
        *({"AWS_ENDPOINT_URL": "http://h/path"}, {"AWS_ENDPOINT_URL": "h:1"}),
        *({"AWS_ENDPOINT_URL": "http://h:port"}, {"AWS_ENDPOINT_URL_KINESIS": "http://u@h"}),
        {"AWS_SOMETHING_NEW": "1"},
    ],
    ids=str,
)
def test_an_environment_that_only_botocore_can_read_is_left_to_it(given):
    assert plain_environment(LAMBDA) is not None
    assert plain_environment({**LAMBDA, **given}) is None


@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_what_needs_no_proxy_matters_to_nobody_where_none_is_named(session, name):
    env = {**LAMBDA, name: "localhost"}
    session(env)
    assert get_environ_proxies("https://kinesis.eu-central-1.amazonaws.com").get("https") is None
    assert plain_environment(env) == plain_environment(LAMBDA)


@pytest.mark.parametrize("name", ["config", "credentials"])
def test_a_configuration_file_is_left_to_botocore(tmp_path, name):
    env = {**LAMBDA, "HOME": str(tmp_path)}
    assert plain_environment(env) is not None
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / name).write_text("[default]\n")
    assert plain_environment(env) is None


@pytest.mark.parametrize(
    "arn", [arn_in("cn-north-1", "aws-cn"), arn_in("eu-central-1", "aws-cn"), "orders", "arn:aws:k"]
)
def test_a_stream_elsewhere_is_left_to_botocore(arn):
    plain = plain_environment(LAMBDA)
    assert [plain.stream(arn, kind) for kind in ("data", "control")] == [None, None]


def test_a_region_elsewhere_is_left_to_botocore():
    assert plain_environment(LAMBDA).of_region(KINESIS, "cn-north-1") is None


@pytest.mark.parametrize(
    ("start", "arguments"),
    [
        (StartingPosition(StartKind.TRIM_HORIZON), {"ShardIteratorType": "TRIM_HORIZON"}),
        (
            StartingPosition(StartKind.AFTER_SEQUENCE_NUMBER, sequence_number="49"),
            {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": "49"},
        ),
        (
            StartingPosition(StartKind.AT_TIMESTAMP, instant_ms=1_700_000_000_123),
            {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": 1_700_000_000.123},
        ),
    ],
    ids=["trim horizon", "number", "instant"],
)
def test_an_iterator_is_asked_for_as_botocore_does(session, start, arguments):
    service = Service((200, {"ShardIterator": "one"}))
    with serving(service) as endpoint:
        sdk = session({**LAMBDA, "AWS_ENDPOINT_URL": endpoint})
        config = botocore.config.Config(retries={"total_max_attempts": 1})
        client = sdk.create_client("kinesis", config=config)
        arn = arn_in("eu-central-1")
        wire = open_wire(arn, client=client, session=sdk)
        asked = {"StreamARN": arn, "ShardId": "shardId-1", **arguments}
        assert client.get_shard_iterator(**asked)["ShardIterator"] == "one"
        assert wire.shard_iterator("shardId-1", start) == "one"
    (theirs, their_body), (ours, our_body) = service.sent[-2:]
    assert json.loads(our_body) == json.loads(their_body) == asked
    for header in ("content-type", "x-amz-target", "x-amz-security-token"):
        assert ours[header] == theirs[header]


FIRST_READ = """
import asyncio, json, os, sys
from shardfleet.domain.reading.pages import StartKind, StartingPosition
from shardfleet.errors import ShardfleetError
from shardfleet.runtime import bootstrap, entry_points

def is_loaded():
    return any(name.startswith("botocore.") for name in sys.modules)

async def reads():
    sandbox = bootstrap.open_sandbox(os.environ)
    threads = bootstrap.TurnThreads(sandbox.config)
    state, stream = bootstrap.state_store(sandbox, threads), bootstrap.stream(sandbox, threads)
    assert await bootstrap.lease_store(sandbox, threads).get("shardId-1") is None
    assert await state.read("slot", "s1") is None
    start = StartingPosition(StartKind.TRIM_HORIZON)
    page = await stream.page("shardId-1", start, resume_token=None, limit=10)
    before = is_loaded()
    try:
        await state.read("slot", "s1")
    except ShardfleetError as refused:
        said = str(refused)
    sandbox.drop_what_may_have_died()
    units = sandbox.clients.capacity.used_tenths()
    await threads.close(within_ms=5_000)
    return page.resume_token, before, is_loaded(), said, units

print(json.dumps(asyncio.run(reads())))
"""


def test_a_worker_reads_first_without_the_sdk_and_a_refusal_is_still_the_sdks():
    fleet = FleetConfig(
        fleet="orders",
        stream_arn=arn_in("eu-central-1"),
        lease_table="leases",
        state_table="state",
        handler="m:f",
    )
    service = Service(
        (200, {"ConsumedCapacity": {"TableName": "leases", "CapacityUnits": 0.5}}),
        (200, {}),
        (200, {"ShardIterator": "one"}),
        (200, {"Records": [], "NextShardIterator": "two", "MillisBehindLatest": 0}),
        error("AccessDeniedException"),
    )
    with serving(service) as endpoint:
        env = {**LAMBDA, **fleet.to_env(), "AWS_ENDPOINT_URL": endpoint}
        words = [sys.executable, "-c", FIRST_READ]
        told = subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout
    resume_token, before, after, said, units = json.loads(told)
    assert (resume_token, before, after) == ("two", False, True)
    assert "AccessDeniedException" in said
    assert units == [5, 0]
    assert service.requests == [
        *("GetItem", "GetItem", "GetShardIterator", "GetRecords", "GetItem"),
    ]
