"""
What an answer means, judged by the tables of others (hazard H22).

botocore's tables are read out of botocore as it is installed; of clocks it has none, so those of
the SDKs for Java 2 (``RetryUtils``, ``DefaultRetryCondition``) and JavaScript (``service-error-
classification``) stand here.
"""

import pickle
from types import SimpleNamespace

import pytest
from botocore import retryhandler
from botocore.loaders import create_loader
from botocore.retries import special, standard
from botocore.session import get_session
from botocore.translate import build_retry_config

from shardfleet.adapters.invoked_function import LATER, REFUSED, UNUSABLE
from shardfleet.domain.refusals import (
    CODES,
    DOUBTED_MS,
    DOUBTED_TIMES,
    STATUSES,
    Doubt,
    RefusalKind,
    error_of,
    refusal_of,
)
from shardfleet.errors import (
    KeyDenied,
    OutcomeUnknown,
    RightMissing,
    ShardfleetError,
    Throttled,
    Unsettled,
    kind_of,
    settled,
)

# What a fleet calls, and Spark beside it.
SERVICES = ("dynamodb", "kinesis", "lambda", "s3", "sns", "sqs", "stepfunctions", "sts")
# ClockSkewErrorCodes (Java); CLOCK_SKEW_ERROR_CODES (JavaScript): they sign anew and ask again.
CLOCK_CODES = {
    "AuthFailure",
    "InvalidSignatureException",
    "RequestExpired",
    "RequestInTheFuture",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
}
# RetryableErrorCodes and ThrottlingErrorCodes of both, TransientStatusCodes.
OTHERS_CODES = {
    "BandwidthLimitExceeded",
    "EC2ThrottledException",
    "LimitExceededException",
    "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "RequestTimeout",
    "RequestTimeoutException",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
    "TransactionInProgressException",
}
PASSES = (RefusalKind.BUSY, RefusalKind.BROKEN)


def of_the_legacy_table():
    """Return each (code, status) of ``_retry.json``: of each service, and what all of them have."""
    table = create_loader().load_data("_retry")
    policies = [*table["definitions"].values()]
    for service in table["retry"].values():
        for operation in service.values():
            if isinstance(operation, dict):
                policies += operation.get("policies", {}).values()
    for policy in policies:
        response = policy.get("applies_when", {}).get("response", {})
        if "service_error_code" in response or "http_status_code" in response:
            yield response.get("service_error_code", ""), response.get("http_status_code", 0)


def of_the_standard_mode():
    """Return each (code, status) of ``retries/standard.py`` and ``retries/special.py``."""
    transient = standard.TransientRetryableChecker
    for code in transient._TRANSIENT_ERROR_CODES:
        yield code, 400
    for status in transient._TRANSIENT_STATUS_CODES:
        yield "", status
    for code in standard.ThrottledRetryableChecker._THROTTLED_ERROR_CODES:
        yield code, 400
    assert special.RetryIDPCommunicationError._SERVICE_NAME == "sts"
    yield "IDPCommunicationError", 400


def of_the_models():
    """Return each (code, status) that a service's model says may be asked again."""
    for service in SERVICES:
        model = get_session().get_service_model(service)
        for name in model.shape_names:
            metadata = model.shape_for(name).metadata
            if metadata.get("exception") and metadata.get("retryable") is not None:
                error = metadata.get("error", {})
                yield error.get("code", name), error.get("httpStatusCode", 400)


BOTOCORES = sorted({*of_the_legacy_table(), *of_the_standard_mode(), *of_the_models()})


def test_botocores_tables_are_all_read():
    """A checker that a newer botocore has is a table that nobody has looked at."""
    known = {
        "BaseChecker",
        "BaseRetryableChecker",
        "CRC32Checker",
        "HTTPStatusCodeChecker",
        "MaxAttemptsChecker",
        "ModeledRetryableChecker",
        "MultiChecker",
        "OrRetryChecker",
        "RetryQuotaChecker",
        "ServiceErrorCodeChecker",
        "ThrottledRetryableChecker",
        "TransientRetryableChecker",
    }
    modules = (retryhandler, special, standard)
    assert {n for m in modules for n in vars(m) if n.endswith("Checker")} == known
    assert {n for n in vars(special) if n.startswith("Retry")} == {
        "RetryDDBChecksumError",  # adapters/dynamodb/wire.py asks botocore itself.
        "RetryIDPCommunicationError",
    }
    assert len(BOTOCORES) > 25


@pytest.mark.parametrize(("code", "status"), BOTOCORES)
def test_what_botocore_asks_again_passes_here_too(code, status):
    assert refusal_of(code, status) in PASSES
    assert refusal_of(code or str(status), status) in PASSES  # as botocore reads a page


@pytest.mark.parametrize("code", sorted(OTHERS_CODES))
def test_what_other_sdks_ask_again_passes_here_too(code):
    assert refusal_of(code, 400) in PASSES


@pytest.mark.parametrize("code", sorted(CLOCK_CODES))
def test_what_other_sdks_sign_anew_is_doubted_first(code):
    error = error_of(refusal_of(code, 403), "GetItem", writes=True)
    assert isinstance(error, Unsettled)
    assert isinstance(error.verdict, RightMissing)
    assert "clock" in str(error)


def is_retried(code, status, *, service="kinesis"):
    """Ask both of botocore's retry modes."""
    response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    http = SimpleNamespace(status_code=status, headers={}, content=b"")
    model = get_session().get_service_model(service)
    for name in model.operation_names:
        context = standard.RetryContext(
            attempt_number=1,
            operation_model=model.operation_model(name),
            http_response=http,
            parsed_response=response,
        )
        if standard.StandardRetryConditions().is_retryable(context):
            return True
    table = create_loader().load_data("_retry")
    config = build_retry_config(service, table["retry"], table.get("definitions", {}))
    checker = retryhandler.create_checker_from_retry_config(config)
    return checker(
        attempt_number=1, response=(http, response), caught_exception=None, retries_context={}
    )


DOUBTED = sorted(code for code, refusal in CODES.items() if refusal not in PASSES)


@pytest.mark.parametrize("code", DOUBTED)
def test_what_may_become_final_is_in_no_table_of_botocores(code):
    assert not any(is_retried(code, 400, service=service) for service in SERVICES)


def test_nothing_at_all_is_final_at_once():
    """Not by a code that nobody knows, nor by any status: a person is asked when it lasts."""
    for writes in (False, True):
        for code in (*CODES, "StrangeException", "KMSDisabledException", ""):
            for status in range(300, 600):
                said = code or str(status)
                error = error_of(refusal_of(said, status), "a call", writes=writes)
                assert isinstance(error, (Throttled, OutcomeUnknown)), (code, status)


def test_a_status_from_500_on_is_never_a_refusal_that_nobody_could_have_applied():
    """What botocore asks again by its status may have been done: a write is looked for (H1)."""
    for status in (408, *range(500, 600)):
        for code in ("", str(status), "StrangeException"):
            error = error_of(refusal_of(code, status), "UpdateItem", writes=True)
            assert isinstance(error, OutcomeUnknown)
            error = error_of(refusal_of(code, status), "GetItem", writes=False)
            assert isinstance(error, Throttled)
            assert not isinstance(error, Unsettled)


@pytest.mark.parametrize("status", sorted({400, 401, 403, 404, 407, 413, 418, 421, 425, 451, 499}))
def test_what_a_proxy_says_is_doubted_and_a_write_that_it_answered_is_looked_for(status):
    assert status not in STATUSES
    refusal = refusal_of(str(status), status)
    assert isinstance(error_of(refusal, "GetItem", writes=False), Unsettled)
    assert isinstance(error_of(refusal, "UpdateItem", writes=True), OutcomeUnknown)


def test_what_lambda_refuses_for_is_in_one_list_only():
    assert not {*LATER} & {*UNUSABLE}
    assert not {*LATER} & {*REFUSED}
    for code in (*UNUSABLE, *REFUSED):
        assert refusal_of(code, 0) not in PASSES


def test_a_verdict_is_told_by_its_own_name_and_survives_a_process():
    error = error_of(RefusalKind.KEY_DENIED, "PutRecords", writes=True)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert str(again) == str(error) == str(error.verdict)
    assert kind_of(again) == "KeyDenied"
    assert isinstance(settled(again), KeyDenied)
    plain = ShardfleetError("x")
    assert settled(plain) is plain


def test_it_is_believed_when_it_has_lasted_and_not_after_a_sleep_in_between():
    denied, doubt = error_of(RefusalKind.DENIED, "GetItem", writes=False), Doubt()
    # A sandbox that was frozen for an hour has asked twice.
    assert not doubt.believes(denied, 0)
    assert not doubt.believes(denied, 3_600_000)
    assert not doubt.believes(denied, 3_600_100)
    assert doubt.believes(denied, 3_600_200)
    doubt.clear()
    for times in range(2 * DOUBTED_TIMES):
        assert not doubt.believes(denied, times)
    assert not doubt.believes(Throttled("busy"), DOUBTED_MS)
    assert doubt.believes(denied, DOUBTED_MS)
