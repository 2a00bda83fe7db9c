"""What a person is told to do about an error of a handler: each kind has a cure of some use."""

import errno

import pytest

from shardfleet.errors import kind_of
from shardfleet_ops.explain.handler_cures import cure_of

PLACE = " (orders.py:3 in handle)"
LOOK = "look at that line with the record"
CURES = {
    "give the call a shorter time-out": (
        "TimeoutError", "SSLError", "MaxRetryError", "ClientConnectorError", "BrokenPipeError",
        "OperationalError", "RemoteDisconnected", "IncompleteRead", "ConnectionAbortedError",
    ),
    "the payload is not what": (
        "Error", "error", "ParseError", "EOFError", "InvalidOperation", "ArrowInvalid",
        "SchemaError", "AvroTypeException", "LZMAError", "UnidentifiedImageError",
    ),
    "it does not take the record": (
        "StopIteration", "LookupError", "ArithmeticError", "ExceptionGroup",
    ),
    "count as done": (
        "IntegrityError", "FileExistsError", "ClientError ResourceInUseException of CreateTable",
        "ClientError BucketAlreadyExists of CreateBucket", "BucketAlreadyExists of CreateBucket",
        "ConditionalCheckFailedException of PutItem",
    ),
    "grant the worker's role": ("AccessDenied of ListBuckets", "ClientError AccessDenied of Get"),
    "mend the request": ("InvalidParameterException of Publish", "ValidationException of Query"),
    "CancellationReasons": ("ClientError TransactionCanceledException of TransactWriteItems",),
    "that service failed": ("ClientError ServiceUnavailable of Query", "ClientError 503 of Get"),
    "the status it answers with": ("HTTPError", "HTTPStatusError", "ClientResponseError"),
    "what that service answers": ("WaiterError", "ClientError LimitExceededException of Create"),
    "remove from /tmp": ("OSError ENOSPC",),
    "close what that line opens": ("OSError EMFILE",),
    "no shared memory": ("OSError ENOSYS", "BrokenProcessPool", "CalledProcessError"),
    "a time-out of its own": ("TimeoutExpired", "Empty"),
    LOOK: ("OrderRejected", "Exception", "KeyboardAffair"),
}  # fmt: skip


@pytest.mark.parametrize(("wanted", "kind"), [(w, k) for w, kinds in CURES.items() for k in kinds])
def test_each_kind_of_error_has_a_cure(wanted, kind):
    behind = ", from KeyError (orders.py:2 in f)" if kind == "ExceptionGroup" else ""

    assert wanted in cure_of(f"{kind}{PLACE}{behind}")


def test_what_names_no_line_of_code_has_no_cure_made_up_for_it():
    assert cure_of("it lost its worker 5 times") == ""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "OSError EMFILE"),
        (OSError("a record"), "OSError"),
        (OSError(987_654, "a record"), "OSError"),
        (OSError([], "a record"), "OSError"),
        (FileNotFoundError(errno.ENOENT, "no"), "FileNotFoundError"),
    ],
)
def test_a_refusal_by_the_system_is_told_by_its_name(error, kind):
    assert kind_of(error) == kind
