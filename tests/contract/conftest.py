"""
The services a fleet stands on, asked the same questions wherever they run.

Each test runs against the embedded AWS. `SHARDFLEET_TEST_AWS=1` runs it against the account of the
caller's own credentials too (it costs a few cents). Those of the stores run against DynamoDB Local
where `npm ci` has put it, and against the memory of the test kit.

`fails_on` names a judge that does otherwise, the fact that it does not keep, and how; there the
test must fail, and the fact names it (tests/facts).
"""

import os
import time
import uuid

import boto3
import pytest

DEADLINE_S = 120.0


def pytest_configure(config):
    for marker in (
        "documented(page): what AWS documents, and where",
        "observed(by): what is seen in practice, and by whom",
        "fails_on(judge, fact, how): a judge of the contract suite that does otherwise",
    ):
        config.addinivalue_line("markers", marker)


@pytest.fixture(autouse=True)
def differing(request):
    """What is known to be otherwise at this judge is expected to fail there."""
    judges = getattr(request.node, "callspec", None)
    for marker in request.node.iter_markers("fails_on"):
        where, fact, how = marker.args
        if judges and where in judges.params.values():
            request.applymarker(pytest.mark.xfail(reason=f"{where}, {fact}: {how}", strict=True))


class RealAccount:
    """The account of the caller's own credentials."""

    def client(self, service):
        return boto3.client(service)


AWS = ["aws"] if os.environ.get("SHARDFLEET_TEST_AWS") == "1" else []


@pytest.fixture(params=["embedded", *AWS], scope="session")
def account(request):
    """Something with `client(service)`: the embedded AWS, or a real account if opted in."""
    return RealAccount() if request.param == "aws" else request.getfixturevalue("embedded_aws")


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
