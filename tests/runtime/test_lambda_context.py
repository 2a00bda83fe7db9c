"""The context that an event handler is given."""

from types import SimpleNamespace

import pytest

from shardfleet.runtime.handler_call import BatchContext


@pytest.fixture
def invocation():
    return SimpleNamespace(
        aws_request_id="request-1",
        function_name="worker",
        memory_limit_in_mb="512",
        invoked_function_arn="arn:aws:lambda:eu-central-1:111122223333:function:worker:live",
        get_remaining_time_in_millis=lambda: 800_000,
    )


def test_the_time_left_is_the_batchs_and_never_negative(invocation):
    now = {"ms": 1_000}
    context = BatchContext(invocation, deadline_ms=61_000, now_ms=lambda: now["ms"])
    assert context.get_remaining_time_in_millis() == 60_000
    now["ms"] = 60_900
    assert context.get_remaining_time_in_millis() == 100
    now["ms"] = 70_000
    assert context.get_remaining_time_in_millis() == 0


def test_all_else_is_the_invocations(invocation):
    context = BatchContext(invocation, deadline_ms=0, now_ms=lambda: 0)
    for name in ("aws_request_id", "function_name", "memory_limit_in_mb", "invoked_function_arn"):
        assert getattr(context, name) == getattr(invocation, name)
    with pytest.raises(AttributeError):
        context.no_such_thing  # noqa: B018 - the access is the test


def test_powertools_logger_takes_it_for_lambdas_own(invocation):
    from aws_lambda_powertools.logging.lambda_context import (  # noqa: PLC0415 - one test's matter
        build_lambda_context_model,
    )

    model = build_lambda_context_model(BatchContext(invocation, deadline_ms=0, now_ms=lambda: 0))
    assert model.function_request_id == "request-1"
    assert model.function_arn == invocation.invoked_function_arn
