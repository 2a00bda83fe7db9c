"""Leaving an embedded AWS running for boto3, the AWS CLI and the browser, until Ctrl-C."""

import contextlib
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from shardfleet_local.aws.deploy import StackOutputs, deploy, stack_of
from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.aws.standing import Standing

LOOK_EVERY_S = 0.3  # ours


def serve(
    aws: EmbeddedAws,
    *,
    assembly: Path,
    say: Callable[[str], None] = print,
    until: threading.Event | None = None,
    standing_at: Path | None = None,
    look: Callable[[StackOutputs], None] | None = None,
) -> None:
    """
    Start `aws`, deploy an assembly's only stack, say how to use it, and wait.

    Whoever connects to the socket `standing_at` meanwhile is told the same (`standing.lines_of`).
    `look` is called every `LOOK_EVERY_S` seconds with what was deployed.
    Ends (stopping everything) at SIGINT or SIGTERM, or when `until` is set. Signals can be
    handled in the main thread only; elsewhere `until` is the way. Raises what starting and
    deploying raise.
    """
    stack_name = stack_of(assembly)
    ending = until or threading.Event()
    with aws, _Signals(ending):
        lines = [f"The embedded AWS answers at {aws.endpoint_url} (/_shardfleet/health)"]
        lines += [f"export {name}={value}" for name, value in aws.environment().items()]
        lines.append(f"export SHARDFLEET_STACK={stack_name}")
        for line in lines:
            say(line)
        stack = deploy(assembly, stack_name, aws)
        summary = _summary(stack)
        for line in summary:
            say(line)
        lines += summary
        with Standing(standing_at, lines) if standing_at else contextlib.nullcontext():
            say("Ctrl-C stops it and removes everything in it.")
            while not ending.wait(LOOK_EVERY_S):
                if look:
                    look(stack)


def _summary(stack: StackOutputs) -> list[str]:
    end = ":" if stack.outputs else "."
    return [f"Stack {stack.stack_name} is deployed, {len(stack.resources)} resources{end}"] + [
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
