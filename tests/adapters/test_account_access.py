"""Clients of an account named by options: region, endpoint, role."""

import uuid

import pytest

from shardfleet.adapters.clients.account_access import Access, AccountClients
from shardfleet.errors import ConfigurationError, ShardfleetError

pytestmark = pytest.mark.processes


@pytest.fixture
def stream(embedded_aws):
    client, name = embedded_aws.client("kinesis"), f"access-{uuid.uuid4().hex[:8]}"
    client.create_stream(StreamName=name, ShardCount=1)
    client.get_waiter("stream_exists").wait(StreamName=name)
    yield name
    client.delete_stream(StreamName=name)


@pytest.fixture(autouse=True)
def its_key(embedded_aws, monkeypatch):
    for name, value in embedded_aws.key.environment().items():
        monkeypatch.setenv(name, value)


def access(aws, **changes):
    return Access(**{"region": aws.region, "endpoint": aws.endpoint_url, **changes})


def test_a_streams_name_becomes_its_arn(embedded_aws, stream):
    arn = f"arn:aws:kinesis:{embedded_aws.region}:{embedded_aws.account_id}:stream/{stream}"

    assert AccountClients(access(embedded_aws)).stream_arn(stream) == arn
    assert AccountClients(access(embedded_aws)).stream_arn(arn) == arn


def test_a_stream_that_is_not_there_is_named(embedded_aws):
    with pytest.raises(ConfigurationError, match=f"'nobody'.*{embedded_aws.region}"):
        AccountClients(access(embedded_aws)).stream_arn("nobody")


def test_the_region_is_the_given_one_or_the_streams_or_the_environments(monkeypatch):
    arn = "arn:aws:kinesis:ap-south-1:111122223333:stream/x"

    assert AccountClients(Access(region="us-west-2"), stream=arn).region == "us-west-2"
    assert AccountClients(Access(), stream=arn).region == "ap-south-1"
    assert AccountClients(Access(), stream="x").region == "eu-central-1"
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    with pytest.raises(ConfigurationError, match="no AWS region"):
        AccountClients(Access(), stream="x")


def test_a_role_is_assumed_at_the_first_call_and_not_before(embedded_aws, stream):
    role = f"arn:aws:iam::{embedded_aws.account_id}:role/reader"
    clients = AccountClients(
        access(embedded_aws, role_arn=role, role_session_name="me", role_external_id="given")
    )

    credentials = clients.stream_control._request_signer._credentials
    assert credentials.method == "assume-role"
    assert credentials._access_key is None
    assert clients.stream_arn(stream).endswith(stream)
    assert credentials.get_frozen_credentials().access_key != embedded_aws.key.id
    assert credentials.get_frozen_credentials().token


def test_records_are_sent_once_and_the_rest_may_be_repeated(embedded_aws):
    clients = AccountClients(access(embedded_aws))

    def attempts(client):
        return client.meta.config.retries["total_max_attempts"]

    assert attempts(clients.stream_records) == 1
    assert attempts(clients.stream_control) > 1
    assert clients.table_reads.meta.endpoint_url == embedded_aws.endpoint_url
    assert clients.s3.meta.endpoint_url == embedded_aws.endpoint_url


@pytest.fixture
def others_key(monkeypatch):
    """Let the environment have keys that the account does not know."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-this-one")


def keys_of(aws):
    environment = aws.key.environment()
    return {
        "access_key_id": environment["AWS_ACCESS_KEY_ID"],
        "secret_access_key": environment["AWS_SECRET_ACCESS_KEY"],
    }


@pytest.mark.usefixtures("others_key")
@pytest.mark.parametrize("role", ["", "reader"])
def test_keys_that_are_given_come_before_the_environments(embedded_aws, stream, role):
    arn = f"arn:aws:iam::{embedded_aws.account_id}:role/{role}" if role else ""

    with pytest.raises(ShardfleetError):
        AccountClients(access(embedded_aws, role_arn=arn)).stream_arn(stream)
    found = AccountClients(access(embedded_aws, role_arn=arn, **keys_of(embedded_aws)))
    assert found.stream_arn(stream).endswith(stream)
    assert found.table_reads.list_tables()["TableNames"] is not None


@pytest.mark.usefixtures("others_key")
def test_keys_of_a_profile_come_before_the_environments(
    embedded_aws, stream, tmp_path, monkeypatch
):
    file, keys = tmp_path / "credentials", keys_of(embedded_aws)
    file.write_text("[mine]\n" + "".join(f"aws_{name} = {key}\n" for name, key in keys.items()))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))

    assert AccountClients(access(embedded_aws, profile="mine")).stream_arn(stream)
    with pytest.raises(ConfigurationError, match=r"profile = 'yours'.* but mine"):
        AccountClients(access(embedded_aws, profile="yours")).stream_arn(stream)
