"""Leaving an embedded AWS running for boto3, the AWS CLI and the browser, until Ctrl-C."""

import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from shardfleet.local.aws.deploy import StackOutputs, deploy
from shardfleet.local.aws.launcher import EmbeddedAws


def serve(
    aws: EmbeddedAws,
    *,
    assembly: Path | None = None,
    stack_name: str | None = None,
    parameters: Mapping[str, str] | None = None,
    say: Callable[[str], None] = print,
    until: threading.Event | None = None,
) -> None:
    """
    Start `aws`, deploy a stack if one is named, say how to use it, and wait.

    Ends (stopping everything) at SIGINT or SIGTERM, or when `until` is set. Signals can be
    handled in the main thread only; elsewhere `until` is the way. Raises what starting and
    deploying raise.
    """
    ending = until or threading.Event()
    with aws, _Signals(ending):
        say(f"The embedded AWS answers at {aws.endpoint_url}")
        for name, value in aws.environment().items():
            say(f"export {name}={value}")
        if assembly is not None and stack_name is not None:
            for line in _summary(deploy(assembly, stack_name, aws, parameters=parameters)):
                say(line)
        say("Ctrl-C stops it and removes everything in it.")
        ending.wait()


def _summary(stack: StackOutputs) -> list[str]:
    return [f"Stack {stack.stack_name} is deployed, {len(stack.resources)} resources:"] + [
        f"  {key} = {value}" for key, value in stack.outputs.items()
    ]


class _Signals:
    """Sets an event at SIGINT and SIGTERM, as long as it is entered in the main thread."""

    def __init__(self, ending: threading.Event) -> None:
        self._ending = ending
        self._previous: dict[int, object] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, lambda *_: self._ending.set())

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
