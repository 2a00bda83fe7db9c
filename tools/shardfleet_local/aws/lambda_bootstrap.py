"""
The program inside a Lambda process of the embedded AWS: Lambda's Python runtime client, in small.

It is run as a script (never imported), with `python -P`, so that this folder is not importable from
user code. It must not import shardfleet: the function's own layer decides which one that is.

Protocol with `sandbox.py`: one JSON line per invocation on standard input, one JSON line per reply
on the file descriptor named by `_SHARDFLEET_REPLY_FD`. Standard output and error are the log; after
each invocation a line starting with NUL marks how far its log reaches.
"""

import _multiprocessing  # type: ignore[import-not-found]
import ctypes
import importlib
import json
import logging
import os
import signal
import socket
import stat
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

PR_SET_PDEATHSIG = 1
"""`prctl(2)`: which signal this process gets when its parent thread ends."""

Handler = Callable[[Any, Any], Any]


class HandlerNotFound(Exception):  # The name is Lambda's.
    """The module was imported and has no function of the handler's name."""


def main() -> None:
    """Load the handler, say so, then serve invocations until standard input ends."""
    _die_with_the_server()
    descriptor = int(os.environ.pop("_SHARDFLEET_REPLY_FD"))
    os.set_inheritable(descriptor, False)  # noqa: FBT003  # Positional only.
    replies = os.fdopen(descriptor, "w", encoding="utf-8")
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    _detach_standard_input()
    _take_shared_memory_away()
    request_id = _log_like_lambda()
    try:
        handler = _load_handler(os.environ["_HANDLER"])
    except BaseException as error:  # noqa: BLE001  # Whatever ends the import is an init error.
        traceback.print_exc()
        _send(replies, {"status": "init_error", "error": _init_error_payload(error)})
        return
    _send(replies, {"status": "ready"})
    for line in requests:
        invocation = json.loads(line)
        if invocation["silent"]:
            _silence_connections()
        request_id.append(invocation["request_id"])
        reply = _invoke(handler, invocation)
        request_id.pop()
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(1, b"\0end " + invocation["request_id"].encode() + b"\n")
        _send(replies, reply)


def _die_with_the_server() -> None:
    """Ask the kernel to kill this process when the server dies, even while it is frozen."""
    server = int(os.environ.pop("_SHARDFLEET_SERVER_PID"))
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)  # The server died before the request to the kernel.


def _take_shared_memory_away() -> None:
    """Refuse semaphores: Lambda has no /dev/shm (fact L02: nalepae/pandarallel issue 128)."""

    class SemLock(_multiprocessing.SemLock):  # type: ignore[misc]
        def __new__(cls, *_: object) -> Any:
            # Linux's ENOSYS, wherever this runs.
            raise OSError(38, "Function not implemented")  # fact L02

    _multiprocessing.SemLock = SemLock


_nobody: list[socket.socket] = []
"""The far ends of connections that died: they take what comes, and answer nothing."""


def _silence_connections() -> None:
    """Let what is sent on each open connection reach nobody, as after a freeze (fact L04)."""
    while _nobody:
        _nobody.pop().close()  # What is still used of an earlier freeze is refused by now.
    for descriptor in [int(each.name) for each in Path("/dev/fd").iterdir()]:
        try:
            is_socket = stat.S_ISSOCK(os.fstat(descriptor).st_mode)
        except OSError:
            continue  # The listing's own descriptor.
        if is_socket and _is_connected(descriptor):
            near, far = socket.socketpair()
            near.setblocking(os.get_blocking(descriptor))
            os.dup2(near.fileno(), descriptor, inheritable=False)
            near.close()
            _nobody.append(far)


def _is_connected(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as same:
        if same.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        try:
            same.getpeername()
        except OSError:
            return False
        return same.type == socket.SOCK_STREAM


def _detach_standard_input() -> None:
    """Give user code an empty standard input: the real one carries invocations."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


class _LambdaFormatter(logging.Formatter):
    """Lambda's text format: level, UTC instant, request id, message, separated by tabs."""

    def __init__(self, request_id: list[str]) -> None:
        super().__init__("[%(levelname)s]\t%(asctime)s.%(msecs)03dZ\t%(request_id)s\t%(message)s")
        self.datefmt = "%Y-%m-%dT%H:%M:%S"
        self.converter = time.gmtime
        self._request_id = request_id

    def format(self, record: logging.LogRecord) -> str:
        record.request_id = self._request_id[-1] if self._request_id else ""
        return super().format(record)


def _log_like_lambda() -> list[str]:
    """Put Lambda's handler on the root logger; the list holds the running request's id."""
    request_id: list[str] = []
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_LambdaFormatter(request_id))
    logging.getLogger().addHandler(handler)
    return request_id


def _load_handler(name: str) -> Handler:
    """Import `package/module.function` (Lambda takes slashes or dots)."""
    module_name, _, function_name = name.replace("/", ".").rpartition(".")
    module = importlib.import_module(module_name)
    handler: Handler | None = getattr(module, function_name, None)
    if handler is None:
        raise HandlerNotFound(
            f"Handler '{function_name}' missing on module '{module_name}'"
        )  # fact L20
    return handler


def _invoke(handler: Handler, invocation: dict[str, Any]) -> dict[str, Any]:
    for name, value in invocation["variables"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    try:
        result = handler(invocation["event"], _context(invocation))
    except Exception as error:  # noqa: BLE001  # Every exception becomes the reply, as in Lambda.
        traceback.print_exc()
        return {"status": "error", "error": _error_payload(error, invocation["request_id"])}
    try:
        return {"status": "ok", "result": json.dumps(result)}
    except (TypeError, ValueError) as error:
        payload = _error_payload(error, invocation["request_id"])
        payload["errorType"] = "Runtime.MarshalError"
        payload["errorMessage"] = f"Unable to marshal response: {error}"
        return {"status": "error", "error": payload}


def _context(invocation: dict[str, Any]) -> SimpleNamespace:
    """Build the context object: the fields and the method of Lambda's, and nothing else."""
    deadline = time.monotonic() + invocation["timeout_s"]
    return SimpleNamespace(
        function_name=os.environ["AWS_LAMBDA_FUNCTION_NAME"],
        function_version=os.environ["AWS_LAMBDA_FUNCTION_VERSION"],
        memory_limit_in_mb=os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"],
        invoked_function_arn=invocation["function_arn"],
        aws_request_id=invocation["request_id"],
        log_group_name=os.environ["AWS_LAMBDA_LOG_GROUP_NAME"],
        log_stream_name=os.environ["AWS_LAMBDA_LOG_STREAM_NAME"],
        identity=None,
        client_context=None,
        get_remaining_time_in_millis=lambda: max(0, int((deadline - time.monotonic()) * 1000)),
    )


def _error_payload(error: BaseException, request_id: str = "") -> dict[str, Any]:
    """Describe an exception as Lambda's runtime client does."""
    return {
        "errorMessage": str(error),
        "errorType": type(error).__name__,
        "requestId": request_id,
        "stackTrace": traceback.format_list(traceback.extract_tb(error.__traceback__)),
    }


def _init_error_payload(error: BaseException) -> dict[str, Any]:
    """Describe what ended the import of the handler, with Lambda's two names for the usual ends."""
    payload = _error_payload(error)
    module = os.environ["_HANDLER"].rpartition(".")[0]
    if isinstance(error, ImportError):
        payload["errorType"] = "Runtime.ImportModuleError"
        payload["errorMessage"] = f"Unable to import module '{module}': {error}"
    elif isinstance(error, HandlerNotFound):
        payload["errorType"] = "Runtime.HandlerNotFound"
    return payload


def _send(replies: TextIO, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
