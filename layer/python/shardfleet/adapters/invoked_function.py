"""
A Lambda function of the user's, invoked with records as an event source mapping would.

An error code of Invoke says that the function did not run (botocore's model of it: "error codes are
reserved for errors that prevent your function from executing"): then either it is asked again
later, or a person must act, or the event itself is refused. What the function raised is an answer.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import Struct

from shardfleet.adapters.sdk_errors import ErrorFactory, RefusalIsAnswer, SdkCall, unsettled
from shardfleet.adapters.thread_pool import ThreadPool, in_threads_of
from shardfleet.domain.slots.failure import FailureKind
from shardfleet.errors import HandlerNotLoaded, Throttled

# The function or what it stands on is busy, not ready yet, or short of something for a while.
LATER = (
    "CodeArtifactUserPendingException",
    "EC2ThrottledException",
    "EC2UnexpectedException",
    "EFSIOException",
    "EFSMountConnectivityException",
    "EFSMountTimeoutException",
    "ENILimitReachedException",
    "ENINotReadyException",
    "ResourceConflictException",
    "ResourceNotReadyException",
    "S3FilesMountConnectivityException",
    "S3FilesMountTimeoutException",
    "ServiceException",
    "ServiceQuotaExceededException",
    "SnapStartNotReadyException",
    "SnapStartRegenerationFailureException",
    "SnapStartTimeoutException",
    "SubnetIPAddressLimitReachedException",
    "TooManyRequestsException",
)
# No repeat helps before somebody has mended the function, or the fleet's idea of it.
UNUSABLE = (
    "CodeArtifactUserDeletedException",
    "CodeArtifactUserFailedException",
    "DurableExecutionAlreadyStartedException",
    "EC2AccessDeniedException",
    "EFSMountFailureException",
    "InvalidParameterValueException",
    "InvalidRuntimeException",
    "InvalidSecurityGroupIDException",
    "InvalidSubnetIDException",
    "InvalidZipFileException",
    "ModeNotSupportedException",
    "NoPublishedVersionException",
    "RecursiveInvocationException",
    "ResourceNotFoundException",
    "S3FilesMountFailureException",
    "SnapStartException",
    "UnsupportedMediaTypeException",
)
# The event is too large, or not what the function can be given.
REFUSED = (
    "InvalidRequestContentException",
    "RequestEntityTooLargeException",  # What Lambda says; its model has the next one.
    "RequestTooLargeException",
    "SerializedRequestEntityTooLargeException",
)


class FunctionAnswer(Struct, frozen=True, kw_only=True):
    """
    What became of an invocation.

    Attributes:
        payload: what the function returned, or Lambda's account of its error, as JSON.
        failed: the function raised, timed out or died (``FunctionError``).
        refusal: why Lambda did not take the event; the function did not run.

    """

    payload: bytes = b""
    failed: bool = False
    refusal: str = ""


class InvokedFunction:
    """
    One function, by ARN (a version or alias at its end is allowed) or name.

    Args:
        name: of the function.
        client: sends once, and waits for an answer as long as a handler may take.
        pool: threads of the calls.

    """

    def __init__(self, name: str, *, client: Any, pool: ThreadPool) -> None:
        """Invoke nothing yet."""
        self.name = name
        self._client = client
        self._pool = pool

    @in_threads_of("_pool")
    def check(self) -> None:
        """
        Ask whether it may be invoked, without doing so.

        Raises:
            HandlerNotLoaded: there is no such function, or it cannot be invoked.
            RightMissing: the worker's role may not.
            Throttled: try again later.

        """
        call = SdkCall(f"Invoke (DryRun) of {self.name}", codes=self._codes())
        call.run(self._client.invoke, FunctionName=self.name, InvocationType="DryRun")

    @in_threads_of("_pool")
    def invoke(self, event: bytes) -> FunctionAnswer:
        """
        Invoke it and wait for its answer.

        Raises:
            Throttled: it did not run; try again later.
            OutcomeUnknown: no answer came; it may have run, or be running.
            HandlerNotLoaded: there is no such function, or it cannot be invoked.
            RightMissing: the worker's role may not.

        """
        codes = {**self._codes(), **dict.fromkeys(REFUSED, RefusalIsAnswer)}
        call = SdkCall(f"Invoke of {self.name}", writes=True, codes=codes)
        try:
            answer = call.run(self._client.invoke, FunctionName=self.name, Payload=event)
            payload = call.run(answer["Payload"].read)
        except RefusalIsAnswer as refusal:
            return FunctionAnswer(refusal=str(refusal))
        return FunctionAnswer(payload=payload, failed="FunctionError" in answer)

    @in_threads_of("_pool")
    def begin(self) -> None:
        """
        Have it invoked, and wait for nothing.

        Raises:
            Throttled: try again later.
            OutcomeUnknown: no answer came; it may be invoked.
            HandlerNotLoaded: there is no such function, or it cannot be invoked.
            RightMissing: the worker's role may not.

        """
        call = SdkCall(f"Invoke (Event) of {self.name}", writes=True, codes=self._codes())
        call.run(self._client.invoke, FunctionName=self.name, InvocationType="Event")

    def _codes(self) -> dict[str, ErrorFactory]:
        # Of some Lambda says so with a 502, which the SDK would ask again.
        unusable = unsettled(partial(_unusable, self.name))
        return {**dict.fromkeys(LATER, Throttled), **dict.fromkeys(UNUSABLE, unusable)}


def _unusable(name: str, text: str) -> HandlerNotLoaded:
    message = f"handler_function {name}: it cannot be invoked: {text}"
    return HandlerNotLoaded(message, kind=FailureKind.FUNCTION)
