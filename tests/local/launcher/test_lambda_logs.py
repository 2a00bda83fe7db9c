"""The log of a sandbox, in the process of the embedded AWS."""

import pytest
from ministack.core.responses import request_scope
from ministack.services import cloudwatch_logs

from shardfleet_local.aws.lambda_logs import SandboxLog

PLACE = ("111122223333", "us-east-1")
CONFIG = {"FunctionName": "f", "LoggingConfig": {"LogGroup": "group-of-the-stack"}}


@pytest.fixture
def log():
    with request_scope(*PLACE):
        yield SandboxLog(CONFIG, account_id=PLACE[0], region=PLACE[1])
        cloudwatch_logs._log_groups.pop("group-of-the-stack", None)


def test_what_a_sandbox_still_writes_brings_no_deleted_group_back(log):
    """A role of ours may not create log groups, so on AWS a stack's groups stay deleted."""
    log.write("the first line makes the group")
    assert "group-of-the-stack" in cloudwatch_logs._log_groups

    del cloudwatch_logs._log_groups["group-of-the-stack"]
    log.write("its environment ends after its function")

    assert "group-of-the-stack" not in cloudwatch_logs._log_groups
