"""DescribeStreamSummary and ListShards without the SDK's shapes; a process begins with both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from shardfleet.adapters.http.client_wire import ClientWire
from shardfleet.adapters.kinesis.shards import UNREAD

if TYPE_CHECKING:
    from mypy_boto3_kinesis.client import KinesisClient

    from shardfleet.adapters.http.answers import HttpAnswer
    from shardfleet.adapters.http.json_service import JsonService

OPERATIONS = {"describe_stream_summary": "DescribeStreamSummary", "list_shards": "ListShards"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ControlWire(ClientWire):
    """
    The operations of :data:`OPERATIONS` by JSON, every other one by the client itself.

    Args:
        client: returns the SDK's, which may repeat.
        opened: opens the service of the stream of an ARN, or of streams by their names (None);
            None says that the client must do.

    """

    def __init__(
        self,
        client: Callable[[], KinesisClient],
        opened: Callable[[str | None], JsonService | None],
    ) -> None:
        """Open nothing yet."""
        super().__init__(client, opened, operations=OPERATIONS)

    def _place(self, arguments: Mapping[str, Any]) -> str | None:
        return arguments.get("StreamARN")

    def _decoded(self, operation: str, answer: HttpAnswer) -> dict[str, Any]:
        """Return what botocore makes of a summary, and the text of a listing."""
        if operation == "ListShards":
            return {UNREAD: answer.body}
        parsed = self._json(answer)
        summary = parsed["StreamDescriptionSummary"]
        created_s = summary["StreamCreationTimestamp"]
        summary["StreamCreationTimestamp"] = _EPOCH + timedelta(seconds=created_s)
        return {**parsed, "ResponseMetadata": {"HTTPHeaders": answer.headers}}
