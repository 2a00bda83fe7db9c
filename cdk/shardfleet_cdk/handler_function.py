"""
A handler that is a Lambda function of its own, of any runtime: what a fleet needs to know of it.

Its worker invokes it as the event source mapping would. The function keeps its own role; the worker
gets the right to invoke it, by the ARN that is given: of a version or an alias that one alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import Token
from aws_cdk import aws_lambda as lambda_

from shardfleet.errors import ConfigurationError
from shardfleet_cdk.handler_code import HandlerCode
from shardfleet_cdk.options import WorkerOptions

# Lambda's default time-out of a function.
_TIMEOUT_S = 3
# An answer takes some time behind the function's end.
_MARGIN_MS = 1_000


def function_of(handler: object) -> lambda_.IFunction | None:
    """
    Return the handler if it is a function, None if it is a folder.

    Raises:
        ConfigurationError: it is neither.

    """
    if isinstance(handler, HandlerCode):
        return None
    if not hasattr(handler, "function_arn"):
        message = (
            f"handler: {handler!r} found, HandlerCode(folder=…) or a Lambda function "
            "(aws_lambda.IFunction) expected"
        )
        raise ConfigurationError(message)
    return handler  # type: ignore[return-value]  # What has an ARN is a function of the CDK.


def config_for(
    function: lambda_.IFunction | None, config: Mapping[str, object], *, worker: WorkerOptions
) -> Mapping[str, object]:
    """
    Return the options; a handler that is a function has at least the time that it has of its own.

    Raises:
        ConfigurationError: the worker has what is meant for user code
            in it; or ``handler_timeout_ms`` is less than the function's time-out: an answer would
            be given up while it is at work, and the next attempt would run beside it.

    """
    if function is None:
        return config
    _check_worker(worker)
    own_s = _own_timeout_s(function)
    if own_s is None:
        return config
    least_ms = round(own_s * 1000) + _MARGIN_MS
    found = config.get("handler_timeout_ms")
    if isinstance(found, int) and found < least_ms:
        message = (
            f"handler_timeout_ms: {found} found, at least {least_ms} allowed: the function's own "
            f"time-out ({own_s:g} s) and {_MARGIN_MS} for its answer; or lower that"
        )
        raise ConfigurationError(message)
    return {"handler_timeout_ms": max(60_000, least_ms), **config}


def _check_worker(worker: WorkerOptions) -> None:
    given = [name for name in ("environment", "layers") if getattr(worker, name)]
    if given:
        message = (
            f"worker {' and '.join(given)}: none allowed where the handler is a function of its "
            "own; set them there"
        )
        raise ConfigurationError(message)


def _own_timeout_s(function: lambda_.IFunction) -> float | None:
    """Return the time-out of a function of this app, also behind an alias; None if unknown."""
    found: object = function
    if isinstance(found, lambda_.Alias):
        found = found.version
    if isinstance(found, lambda_.Version):
        found = found.lambda_
    if not isinstance(found, lambda_.Function):
        return None
    if found.timeout is None:
        return _TIMEOUT_S
    seconds = found.timeout.to_seconds()
    return None if Token.is_unresolved(seconds) else seconds
