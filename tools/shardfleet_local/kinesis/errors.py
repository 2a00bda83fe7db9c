"""
What the engine refuses, in Kinesis's words.

Codes are those of the Kinesis API reference (version 2013-12-02). Throttling and limits are
client errors (HTTP 400) there, as they are here; only `InternalFailure` is a 500.
"""


class KinesisError(Exception):
    """
    A refusal with the code a client sees in `__type`.

    `code` is an exception name of the API reference, `status` the HTTP status (400 or 500).
    """

    def __init__(self, code: str, message: str, *, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def invalid_argument(message: str) -> KinesisError:
    """Return InvalidArgumentException: a value that is well formed but makes no sense here."""
    return KinesisError("InvalidArgumentException", message)


def validation(message: str) -> KinesisError:
    """Return ValidationException: a field that breaks its declared length, range or pattern."""
    return KinesisError("ValidationException", message)


def not_found(message: str) -> KinesisError:
    """Return ResourceNotFoundException: no such stream, shard or consumer (any more)."""
    return KinesisError("ResourceNotFoundException", message)


def in_use(message: str) -> KinesisError:
    """Return ResourceInUseException: it exists already, or is not ACTIVE."""
    return KinesisError("ResourceInUseException", message)


def limit_exceeded(message: str) -> KinesisError:
    """Return LimitExceededException: an account limit or a control-plane call rate."""
    return KinesisError("LimitExceededException", message)


def throughput_exceeded(message: str) -> KinesisError:
    """Return ProvisionedThroughputExceededException: the shard's own limits."""
    return KinesisError("ProvisionedThroughputExceededException", message)


def rate_exceeded_text(*, shard_id: str, stream_name: str, account_id: str) -> str:
    """Return the message of a throttled shard; it names account, stream and shard as AWS does."""
    return f"Rate exceeded for shard {shard_id} in stream {stream_name} under account {account_id}."
