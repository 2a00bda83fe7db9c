"""
The log of one Lambda sandbox, written to CloudWatch Logs line by line as it appears.

ministack writes a function's log once its invocation has ended. A worker's turn lasts minutes, and
its metrics travel in its log (EMF), so here every line is delivered at once, one log stream per
sandbox as on AWS.
"""

import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import IO, Any

from ministack.core.responses import request_scope
from ministack.services import cloudwatch_logs

END_MARK = "\0end "
"""What follows it names the invocation whose part of the log ends here; no part of the log."""

KEPT_LINES = 2_000  # ours
"""Lines remembered per invocation for its log tail (Lambda returns the last 4 KB)."""


def group_name(config: Mapping[str, Any]) -> str:
    """Name the function's log group, as configured or by Lambda's convention."""
    configured = (config.get("LoggingConfig") or {}).get("LogGroup")
    return str(configured or f"/aws/lambda/{config['FunctionName']}")


class SandboxLog:
    """
    The log stream of one sandbox.

    One thread calls `follow` with the process's output; another one `begin`, `end` and `tail`.
    """

    def __init__(self, config: Mapping[str, Any], *, account_id: str, region: str) -> None:
        self.group = group_name(config)
        self.version = str(config.get("Version", "$LATEST"))
        day = time.strftime("%Y/%m/%d", time.gmtime())
        self.stream = f"{day}/[{self.version}]{uuid.uuid4().hex}"
        self._scope = (account_id, region)
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._has_group = False

    def begin(self, request_id: str) -> None:
        """Write Lambda's START line and forget the lines of the invocation before."""
        self._lines.clear()
        self.write(f"START RequestId: {request_id} Version: {self.version}")

    def end(self, request_id: str, *, duration_ms: float, memory_mb: str) -> None:
        """Write Lambda's END and REPORT lines."""
        self.write(
            f"END RequestId: {request_id}",
            f"REPORT RequestId: {request_id}\tDuration: {duration_ms:.2f} ms\t"
            f"Billed Duration: {duration_ms:.0f} ms\tMemory Size: {memory_mb} MB",
        )

    def tail(self) -> str:
        """Return what the current invocation has written so far."""
        return "\n".join(self._lines)

    def follow(self, output: IO[str], reached: Callable[[str], None]) -> None:
        """Copy a process's output until it ends; `reached(request_id)` is called at each mark."""
        for line in output:
            text, mark, request_id = line.rstrip("\n").partition(END_MARK)
            if text or not mark:
                self._lines.append(text)
                self.write(text)
            if mark:
                reached(request_id)
        output.close()

    def write(self, *lines: str) -> None:
        """
        Append lines to the log stream, whose group is made by the first of them.

        A group that is deleted later stays deleted, as it does for a role that may not make any.
        """
        now = int(time.time() * 1000)
        events = [{"timestamp": now, "message": line, "ingestionTime": now} for line in lines]
        with request_scope(*self._scope):
            stream = self._open(now)
            if stream is None:
                return
            cloudwatch_logs._append_log_events(stream, events)
            cloudwatch_logs._fanout_to_subscription_filters(self.group, self.stream, events)

    def _open(self, now: int) -> dict[str, Any] | None:
        groups = cloudwatch_logs._log_groups
        if self.group not in groups:
            if self._has_group:
                return None
            groups[self.group] = {
                "arn": cloudwatch_logs._make_group_arn(self.group),
                "creationTime": now,
                "retentionInDays": None,
                "tags": {},
                "subscriptionFilters": {},
                "streams": {},
            }
        self._has_group = True
        stream: dict[str, Any] = groups[self.group]["streams"].setdefault(
            self.stream,
            {
                "events": [],
                "uploadSequenceToken": "1",
                "creationTime": now,
                "firstEventTimestamp": None,
                "lastEventTimestamp": None,
                "lastIngestionTime": None,
            },
        )
        return stream
