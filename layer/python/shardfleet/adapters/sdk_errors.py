"""
The one place where an error of the SDK becomes an error of shardfleet.

Three questions decide: did the service refuse (not applied), did the request never leave (not
applied), or is nobody able to say (a time-out or a broken connection after sending, or a 5xx on a
write: DynamoDB's documentation leaves open whether it was applied)? Only the last is
``OutcomeUnknown`` (hazard H1), and only for writes: a read is simply repeated later. What a refusal
means is the table of :mod:`shardfleet.domain.refusals` (hazard H22).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Struct, field

from shardfleet.domain.refusals import RefusalKind, error_of, has_code, refusal_of
from shardfleet.errors import ShardfleetError, Throttled, Unsettled

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")
ErrorFactory = Callable[[str], ShardfleetError]

TABLE_PAGING = ("LastEvaluatedKey", "ExclusiveStartKey")  # DynamoDB Scan and Query
CONDITION_FAILED = "ConditionalCheckFailedException"
_WORDS_MOST = 1_000  # of what a service says: enough for a person


class UnreadableAnswer(Exception):
    """An answer that botocore cannot read, or that lacks what every one has; quotes nothing."""


class UsualRefusal(Exception):
    """
    A refusal that was read without the SDK.

    Attributes:
        response: what botocore's ``ClientError`` has under this name.

    """

    def __init__(self, response: Mapping[str, Any], operation: str) -> None:
        """Build the text that botocore's error has."""
        said = response["Error"]
        super().__init__(
            f"An error occurred ({said['Code']}) when calling the {operation} operation: "
            f"{said['Message']}"
        )
        self.response = response


class RefusalIsAnswer(ShardfleetError):
    """A refusal that tells what was asked, as "it exists already": never seen outside adapters."""


class ConditionFailed(Exception):
    """
    A conditional write found its condition false: an answer, never seen outside the adapters.

    Attributes:
        item: the stored item as the service returned it, None when there is none.

    """

    def __init__(self, item: Mapping[str, Any] | None) -> None:
        """Keep the stored item."""
        super().__init__("condition failed")
        self.item = item


class _Whole(dict[str, Any]):
    """What botocore has parsed; by its models few members are required."""

    def __init__(self, answer: dict[str, Any], lacks: ErrorFactory) -> None:
        super().__init__(answer)
        self._lacks = lacks

    def __missing__(self, name: str) -> Any:
        raise self._lacks(f"the answer cannot be read: it lacks {name}")


class SdkCall(Struct, frozen=True):
    """
    What a call is, for judging and naming its errors.

    Attributes:
        what: for a person, e.g. ``"UpdateItem of lease shardId-000000000001 in orders"``.
        writes: whether an unanswered call may have changed something.
        codes: error codes, or statuses of HTTP, that mean something special here, and the error to
            raise.
        odd: what a code that no table knows is, if it lasts.

    """

    what: str
    writes: bool = False
    codes: Mapping[str, ErrorFactory] = field(default_factory=dict)
    odd: ErrorFactory = ShardfleetError

    def run(self, call: Callable[..., T], /, **arguments: Any) -> T:
        """
        Make the call and translate its errors; a member that the answer lacks is one, too.

        Raises:
            ConditionFailed: a conditional write found its condition false.
            Throttled: refused or never sent; not applied.
            OutcomeUnknown: a write that was sent and not answered.
            Unsettled: refused or never sent, for what may pass by itself or not; its verdict is
                RightMissing where a right or credential is missing (KeyDenied: one of a key).
            ShardfleetError: what ``codes`` says, or a request that the SDK does not send.

        """
        try:
            return self.whole(call(**arguments))
        except ShardfleetError:
            raise
        except UsualRefusal as refused:
            raise self._refusal(refused.response) from refused
        except Exception as error:
            judged = self._judged(error)
            if judged is None:
                raise
            raise judged from error

    def whole(self, answer: T) -> T:
        """Return an answer of which a member that is asked for and missing is an error of ours."""
        if type(answer) is dict:
            return cast("T", _Whole(cast("dict[str, Any]", answer), self._unanswered))
        return answer

    def _judged(self, error: Exception) -> Exception | None:
        # The SDK is not loaded before something fails: it takes as long as all else at a start.
        from botocore import exceptions as sdk  # noqa: PLC0415
        from botocore.parsers import ResponseParserError  # noqa: PLC0415

        never_sent = (
            sdk.ConnectTimeoutError,
            sdk.EndpointConnectionError,
            sdk.ProxyConnectionError,
        )
        broken_off = (sdk.ConnectionError, sdk.HTTPClientError, sdk.ResponseStreamingError)
        match error:
            case sdk.ClientError():
                return self._refusal(cast("Mapping[str, Any]", error.response))
            case _ if isinstance(error, never_sent):
                return Throttled(f"{self.what}: could not connect: {error}")
            case ResponseParserError():  # It quotes what it could not read.
                return self._unanswered("the answer cannot be read")
            case _ if isinstance(error, (*broken_off, UnreadableAnswer)):
                return self._unanswered(str(error))
            case sdk.ParamValidationError():
                return ShardfleetError(f"{self.what}: {type(error).__name__}: {error}")
            case _ if _is_of_sdk(error):  # It may raise anything over an answer that is none.
                return self._unanswered(f"the answer cannot be read: {type(error).__name__}")
            case sdk.BotoCoreError():  # Never sent: no credentials could be got, for one.
                text = f"{self.what}: {type(error).__name__}: {error}"
                return Unsettled(ShardfleetError(text))
            case _:
                return None

    def _refusal(self, response: Mapping[str, Any]) -> Exception:
        details = response.get("Error", {})
        code = str(details.get("Code", ""))
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        # Of an answer that is no JSON botocore takes the status for the code and all of the body
        # for the message: a proxy's page, or what was sent to it.
        said = str(details.get("Message", ""))[:_WORDS_MOST] if has_code(code) else ""
        text = f"{self.what}: {code}: {said}"
        if code == CONDITION_FAILED:
            return ConditionFailed(response.get("Item"))
        special = self.codes.get(code) or self.codes.get(str(status))
        if special is not None:
            return special(text)
        refusal = refusal_of(code, status)
        if refusal is RefusalKind.ODD:
            return Unsettled(self.odd(text))
        if refusal is RefusalKind.STRANGE:
            text += f"HTTP status {status} without an error code: perhaps a proxy's answer"
        return error_of(refusal, text, writes=self.writes)

    def _unanswered(self, text: str) -> ShardfleetError:
        return error_of(RefusalKind.BROKEN, f"{self.what}: {text}", writes=self.writes)


def _is_of_sdk(error: BaseException) -> bool:
    """Return whether the SDK raised it while it read an answer: its own or that with the keys."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    readers = ("botocore.parsers", "botocore.credentials")
    return any(frame.f_globals.get("__name__") in readers for frame in frames)


def unsettled(kind: ErrorFactory) -> ErrorFactory:
    """Return what makes an error of ``codes`` be believed only when it lasts."""
    return lambda text: Unsettled(kind(text))


def pages(
    fetch: Callable[..., Mapping[str, Any]], paging: tuple[str, str]
) -> Iterator[Mapping[str, Any]]:
    """
    Yield every page of a paged operation.

    Args:
        fetch: makes one request, with the argument that continues if there is one.
        paging: the member of the answer that says "there is more", and the argument to put it
            into, e.g. :data:`TABLE_PAGING`.

    """
    member, argument = paging
    more: Mapping[str, Any] = {}
    while True:
        page = fetch(**more)
        yield page
        if not page.get(member):
            return
        more = {argument: page[member]}
