"""What the user's handler prints, out of the worker function's log."""

from __future__ import annotations

from typing import Any

_LAMBDAS_OWN = ("START RequestId: ", "END RequestId: ", "REPORT RequestId: ")
_FLEETS_OWN = ('"service":"shardfleet"', '{"_aws"')


class HandlerOutput:
    """
    Reads on in a log group; lines of Lambda and of shardfleet itself are left out.

    Args:
        logs: a boto3 client of CloudWatch Logs.
        group: the worker function's log group.

    """

    def __init__(self, logs: Any, group: str) -> None:
        self._logs = logs
        self._group = group
        self._tokens: dict[str, str] = {}

    def read(self) -> list[str]:
        """Return the lines that are new."""
        pages = self._logs.get_paginator("describe_log_streams").paginate(logGroupName=self._group)
        streams = [each["logStreamName"] for page in pages for each in page["logStreams"]]
        return [line for stream in sorted(streams) for line in self._new_lines(stream)]

    def _new_lines(self, stream: str) -> list[str]:
        lines: list[str] = []
        while True:
            token = self._tokens.get(stream)
            answer = self._logs.get_log_events(
                logGroupName=self._group,
                logStreamName=stream,
                startFromHead=True,
                **({"nextToken": token} if token else {}),
            )
            self._tokens[stream] = answer["nextForwardToken"]
            lines += [each["message"].rstrip("\n") for each in answer["events"]]
            if not answer["events"] or answer["nextForwardToken"] == token:
                return [line for line in lines if is_printed_by_handler(line)]


def is_printed_by_handler(line: str) -> bool:
    """Tell whether a line of the log is neither Lambda's nor shardfleet's own."""
    return not line.startswith(_LAMBDAS_OWN) and not any(mark in line for mark in _FLEETS_OWN)
