"""
Every exception that shardfleet raises on purpose.

The tree::

    ShardfleetError
    ├── ConfigurationError      wrong before anything ran; names every bad field
    │   ├── HandlerNotLoaded       the user's handler cannot be found, imported or called
    │   └── RightMissing           a service refuses what a role must be allowed to do
    │       └── KeyDenied             KMS refuses a key
    ├── InvalidRecord           a record that Kinesis or the KPL format would refuse
    ├── ProtocolError           a rule of the lease protocol would be broken
    │   ├── MalformedLease         an item that cannot be a lease
    │   └── MalformedDocument      a document of the fleet state that cannot be read
    ├── OutcomeUnknown          a write was sent and its answer never came
    ├── StreamError             the stream did not answer as hoped
    │   ├── Throttled              ask again later
    │   │   ├── IndexNotReady          an index that is being built
    │   │   ├── SubscriptionHeld       another subscription has the shard, or had it just now
    │   │   └── Unsettled              it may pass by itself, or a person must mend it
    │   ├── SubscriptionTaken      another subscription has taken the shard over
    │   ├── IteratorExpired        begin at a position again
    │   ├── FalseEnd               a page contradicts itself about its shard's end; ask again
    │   ├── ShardGone              no such shard (any more)
    │   ├── ShardForeign           a lease of a shard that the stream never had
    │   ├── StreamGone             no such stream (any more)
    │   ├── StreamReplaced         same name, other incarnation (hazard H12)
    │   ├── PositionTrimmed        the position is older than the retention period
    │   └── ForeignPosition        the position is of another shard or another stream
    ├── InvalidReply            the user's handler returned what is no reply
    ├── HandlerTimedOut         a handler call outlived its time-out (the process must end, H10)
    └── StaleEpoch              another invocation of this slot has taken over (hazard H1)
"""

from __future__ import annotations

import re
import traceback
from errno import errorcode
from pathlib import Path

# As AWS spells codes and operations; what somebody makes up of a record is told as neither.
_CODE = re.compile(r"[A-Z][A-Za-z0-9]{2,79}(\.[A-Za-z0-9]{1,79}){0,4}|[345]\d\d")
_OPERATION = re.compile(r"[A-Z][A-Za-z0-9]{2,79}")


class ShardfleetError(Exception):
    """The root of all errors raised on purpose by shardfleet."""


class ConfigurationError(ShardfleetError):
    """A setting is wrong; the message names each field, what was found and what is allowed."""


class HandlerNotLoaded(ConfigurationError):
    """
    The user's handler cannot be found, imported or called.

    Attributes:
        kind: ``LOAD``, ``IMPORT``, ``SIGNATURE`` or ``FUNCTION``.
        said: what is wrong, without the place.
        where: file and line of the user's code, empty where that says nothing.

    """

    def __init__(self, message: str, *, kind: str, where: str = "") -> None:
        """Keep what is known beside the message."""
        super().__init__(f"{message} ({where})" if where else message)
        self.said = message
        self.kind = kind
        self.where = where


class RightMissing(ConfigurationError):
    """A service refuses for want of a right: a person must act. First it is unsettled."""


class KeyDenied(RightMissing):
    """
    KMS refuses a key: a person must act, unless the right is so new that it is not seen everywhere.

    Source: botocore's model of KMS, CreateGrant and PutKeyPolicy (fact I01).
    """


class InvalidRecord(ShardfleetError):
    """A record breaks a limit of Kinesis or of the KPL format; it was not accepted."""


class ProtocolError(ShardfleetError):
    """A rule of the lease protocol would be broken: a bug of ours or a foreign writer."""


class MalformedLease(ProtocolError):
    """An item of the lease table claims to be a lease but cannot be read as one."""


class MalformedDocument(ProtocolError):
    """
    A document of the fleet-state table cannot be read, and nothing may stand for it.

    Attributes:
        version: as it was read, for whoever may write another one in its place.

    """

    def __init__(self, message: str, *, version: int) -> None:
        """Keep what is known beside the message."""
        super().__init__(message)
        self.version = version


class OutcomeUnknown(ShardfleetError):
    """A write was sent and no answer came: it may or may not have been applied (hazard H1)."""


class StreamError(ShardfleetError):
    """The stream did not answer as hoped; subclasses say what to do."""


class Throttled(StreamError):
    """A quota of the stream or of a table was exceeded; try again after a pause."""


class IndexNotReady(Throttled):
    """An index is being built, or not there yet; what it would answer is read another way."""


class SubscriptionHeld(Throttled):
    """Another subscription of this consumer has the shard, or had it just now (fact K34)."""


class SubscriptionTaken(StreamError):
    """Another subscription of this consumer took the shard over: does its lease stand (K34)?"""


class Unsettled(Throttled):
    """
    Refused, not applied, and it may pass by itself or not: time tells (hazard H22).

    Who asks again and again raises the verdict once it has lasted
    (:class:`shardfleet.domain.refusals.Doubt`); who asks once has no other answer than this.

    Attributes:
        verdict: what it is if it lasts, e.g. :class:`RightMissing`.

    """

    def __init__(self, verdict: ShardfleetError) -> None:
        """Take the verdict's words."""
        super().__init__(verdict)
        self.verdict = verdict


class IteratorExpired(StreamError):
    """A resume token is too old (a shard iterator: 5 minutes); begin at a position."""


class FalseEnd(StreamError):
    """A page contradicts itself about the end of its shard (protocol.md §4.5); ask again."""


class ShardGone(StreamError):
    """The service knows no such shard (ResourceNotFound on a shard of an existing stream)."""


class ShardForeign(StreamError):
    """A lease is of a shard that the stream never had: no retry makes it readable (H23)."""


class StreamGone(StreamError):
    """The service knows no such stream."""


class StreamReplaced(StreamError):
    """The stream was deleted and created again: old positions mean nothing (hazard H12)."""


class PositionTrimmed(StreamError):
    """
    The position is older than what the stream retains; records may be lost to everybody.

    Attributes:
        nothing_left: the shard was asked, and has no record any more.

    """

    def __init__(self, message: str, *, nothing_left: bool = False) -> None:
        """Keep what is known beside the message."""
        super().__init__(message)
        self.nothing_left = nothing_left


class ForeignPosition(StreamError):
    """The sequence number is of another shard or stream: no loss, but nobody can go on there."""


class InvalidReply(ShardfleetError):
    """A handler returned what means nothing; the message holds types and no data."""


class HandlerTimedOut(ShardfleetError):
    """A handler call outlived its time-out; a thread cannot be stopped, so the process ends."""


class StaleEpoch(ShardfleetError):
    """A newer invocation has claimed this slot; this one must stop without writing (H1)."""


def settled(error: ShardfleetError) -> ShardfleetError:
    """Return what an error is when it is believed: an unsettled one's verdict."""
    return error.verdict if isinstance(error, Unsettled) else error


def told(error: BaseException) -> str:
    """
    Return an error as it may be logged and stored: its kind, and the place that raised it.

    What it says is left out, because it may quote a record, unless it is one of ours, which quote
    none (tests/canary).
    """
    said = f": {error}" if isinstance(error, ShardfleetError) else ""
    return f"{kind_of(error)}{said} ({where_raised(error)})"


def kind_of(error: BaseException) -> str:
    """
    Return the name of an error's class; an unsettled one's is its verdict's.

    Of a refusal by AWS that reached the handler, its code and operation stand behind it; of one by
    the system that has no class of its own, the name of its number.
    """
    kind = type(error.verdict if isinstance(error, Unsettled) else error).__name__
    if type(error) is OSError and isinstance(error.errno, int):
        return " ".join([kind, *filter(None, [errorcode.get(error.errno)])])
    if not is_of_sdk(error):
        return kind
    details = getattr(error, "response", None)
    refusal = details.get("Error") if isinstance(details, dict) else None
    code = str(refusal.get("Code", "")) if isinstance(refusal, dict) else ""
    operation = str(getattr(error, "operation_name", ""))
    return kind + refusal_told(kind, code, operation)


def refusal_told(kind: str, code: str, operation: str) -> str:
    """Return `` Code of Operation``, as much of it as AWS could have spelled so."""
    told_code = f" {code}" if code != kind and _CODE.fullmatch(code) else ""
    return told_code + (f" of {operation}" if _OPERATION.fullmatch(operation) else "")


def is_of_sdk(error: BaseException) -> bool:
    """Return whether it is botocore's ClientError, or derived from it; the SDK is not loaded."""
    kinds = ((kind.__module__, kind.__name__) for kind in type(error).__mro__)
    return ("botocore.exceptions", "ClientError") in kinds


def where_raised(error: BaseException) -> str:
    """Return the place that raised: file, line, function; what was in its hands is nobody's."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "nowhere known"
    last = frames[-1]
    return f"{Path(last.filename).name}:{last.lineno} in {last.name}"
