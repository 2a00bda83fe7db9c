"""
What an answer that is no success means: one table, by the service's code or by HTTP's status.

botocore's own tables judge what passes by itself (tests/domain/test_refusals.py asks each of them);
of signatures and clocks, of which it has none, the SDKs for Java and JavaScript do. Nothing is
final at once but what a call says is an answer to it ("there is no such shard"): a role's right may
be too new to be seen everywhere, a signature may have been made before a sandbox was frozen, a page
may be a proxy's. It is doubted for :data:`DOUBTED_MS`, and then believed: a person must mend it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from shardfleet.errors import (
    KeyDenied,
    OutcomeUnknown,
    RightMissing,
    ShardfleetError,
    Throttled,
    Unsettled,
)

# Fact I01 (botocore's model of KMS: CreateGrant and PutKeyPolicy are eventually consistent): so
# long, and so many times in a row, is asked again; an invocation that was frozen in between has
# asked twice only.
DOUBTED_MS = 60_000
DOUBTED_TIMES = 4


class RefusalKind(StrEnum):
    """What a refusal means; only after the second and the last may a write have been applied."""

    BUSY = "BUSY"  # refused for now
    BROKEN = "BROKEN"  # nobody can say whether it was done
    UNTRUSTED = "UNTRUSTED"  # signature, clock or credentials; each request is signed anew
    DENIED = "DENIED"  # a right is missing
    KEY_DENIED = "KEY_DENIED"  # a key of KMS may not be used
    ODD = "ODD"  # a code that no table knows
    STRANGE = "STRANGE"  # no code: not the service's words, perhaps a proxy's


_BUSY = (
    "BadDigest",  # S3: the body came damaged.
    "BandwidthLimitExceeded",
    "EC2ThrottledException",
    "ExecutionLimitExceeded",
    "ExpiredNextTokenException",
    "IDPCommunicationError",
    "LimitExceededException",
    "OperationAborted",
    "OverLimit",
    "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException",
    "ReplicatedWriteConflictException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "ResourceInUseException",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
    "TransactionConflictException",
    "TransactionInProgressException",
)
_BROKEN = (
    "InternalError",
    "InternalErrorException",
    "InternalFailure",
    "InternalFailureException",
    "InternalServerError",
    "InternalServerErrorException",
    "InternalServiceError",
    "InternalServiceException",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "ServiceUnavailableException",
)
# The first six: ClockSkewErrorCodes of the SDK for Java 2, CLOCK_SKEW_ERROR_CODES of the one for
# JavaScript. The others are of credentials, which are renewed while they are asked for.
_UNTRUSTED = (
    "AuthFailure",
    "InvalidSignatureException",
    "RequestExpired",
    "RequestInTheFuture",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "IncompleteSignatureException",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidToken",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "TokenRefreshRequired",
    "UnrecognizedClientException",
)
_DENIED = (
    "AccessDenied",
    "AccessDeniedException",
    "AuthorizationError",
    "AuthorizationErrorException",
    "NotAuthorized",
    "NotAuthorizedException",
    "OptInRequired",
    "UnauthorizedOperation",
)
CODES: Mapping[str, RefusalKind] = {
    **dict.fromkeys(_BUSY, RefusalKind.BUSY),
    **dict.fromkeys(_BROKEN, RefusalKind.BROKEN),
    **dict.fromkeys(_UNTRUSTED, RefusalKind.UNTRUSTED),
    **dict.fromkeys(_DENIED, RefusalKind.DENIED),
}
"""What a service's code means, whatever the status."""
STATUSES: Mapping[int, RefusalKind] = {
    408: RefusalKind.BROKEN,
    429: RefusalKind.BUSY,
    500: RefusalKind.BROKEN,
    502: RefusalKind.BROKEN,
    503: RefusalKind.BROKEN,
    504: RefusalKind.BROKEN,
    509: RefusalKind.BROKEN,
}
"""What a status means where the code says nothing; each other one from 500 on is broken, too."""
_SERVER_FAULT = 500
# KMSAccessDeniedException of Kinesis, KmsAccessDeniedException of Step Functions, KmsAccessDenied
# and KMS.AccessDeniedException of SQS: each service spells the errors of KMS in its own way.
_OF_KMS = re.compile(r"kms\.?(\w+)", re.IGNORECASE)
_ADVICE: Mapping[RefusalKind, str] = {
    RefusalKind.UNTRUSTED: "check the credentials, and the clock of who signs",
    RefusalKind.DENIED: "check the function's role and the key's policy",
    RefusalKind.KEY_DENIED: "check the function's role and the key's policy",
}


def has_code(code: str) -> bool:
    """Return whether a service has said it; for what is no JSON botocore takes the status."""
    return bool(code) and not code.isdecimal()


def refusal_of(code: str, status: int) -> RefusalKind:
    """
    Return what a refusal means.

    Args:
        code: of the error, as botocore reads it.
        status: of HTTP; 0 where nobody knows.

    """
    if has_code(code):
        if code in CODES:
            return CODES[code]
        if of_kms := _OF_KMS.fullmatch(code):
            is_busy = of_kms[1].lower().startswith("throttl")
            return RefusalKind.BUSY if is_busy else RefusalKind.KEY_DENIED
    if status in STATUSES:
        return STATUSES[status]
    if status >= _SERVER_FAULT:
        return RefusalKind.BROKEN
    return RefusalKind.ODD if has_code(code) else RefusalKind.STRANGE


def error_of(refusal: RefusalKind, text: str, *, writes: bool) -> ShardfleetError:
    """
    Return what is raised for a refusal.

    Args:
        refusal: what it means.
        text: what was tried, and what was answered.
        writes: whether the call may have changed something.

    """
    if refusal is RefusalKind.BUSY:
        return Throttled(text)
    if refusal in (RefusalKind.BROKEN, RefusalKind.STRANGE) and writes:
        return OutcomeUnknown(text)
    if refusal is RefusalKind.BROKEN:
        return Throttled(text)
    if refusal in _ADVICE:
        kind = KeyDenied if refusal is RefusalKind.KEY_DENIED else RightMissing
        return Unsettled(kind(f"{text}; {_ADVICE[refusal]}"))
    return Unsettled(ShardfleetError(text))


class Doubt(Struct):
    """
    How long one thing has been refused in a row for what may pass by itself, or not.

    Attributes:
        since_ms: of the first refusal, on the steady clock; None: the last answer was none.
        times: how many there were.

    """

    since_ms: int | None = None
    times: int = 0

    def believes(self, error: BaseException, now_ms: int) -> bool:
        """Note a failure; return whether it has come so often, and for so long, that it counts."""
        if not isinstance(error, Unsettled):
            return False
        self.since_ms = now_ms if self.since_ms is None else self.since_ms
        self.times += 1
        return self.times >= DOUBTED_TIMES and now_ms - self.since_ms >= DOUBTED_MS

    def clear(self) -> None:
        """Note an answer."""
        self.since_ms, self.times = None, 0
