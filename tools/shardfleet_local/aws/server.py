"""
The server process of the embedded AWS: ministack, corrected, with our Kinesis engine in it.

Run by the launcher as `python -P -m shardfleet_local.aws.server LISTENING_FD [TLS_FD]`, with a pipe
as standard input. Its first line are the settings: they hold a key, and other users may read
command lines. It ends, and leaves no process and no file behind, when that pipe closes: that is,
when the launcher says so and when the launcher's process dies.
"""

import asyncio
import contextlib
import logging
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from hypercorn.asyncio import serve
from hypercorn.config import Config

from shardfleet_local.aws.patches import MinistackMismatch, Patch, apply_all, check
from shardfleet_local.aws.settings import ServerSettings

PARENT_LOOK_S = 1.0
"""How often the server looks whether its parent is still there, should the pipe not tell."""

logger = logging.getLogger("shardfleet_local")


def patches() -> tuple[Patch, ...]:
    """List every patch, in the order in which they are applied (importing them needs ministack)."""
    from shardfleet_local.aws import (  # noqa: PLC0415
        alarms,
        cloudformation,
        cloudwatch,
        credentials,
        dynamodb_indexes,
        emr_service,
        execution_limits,
        kinesis_service,
        lambda_limits,
        lambda_service,
        log_queries,
        paging,
        request_models,
        schedules,
        service_metrics,
        state_machines,
        transport,
    )

    modules = (
        credentials,
        lambda_service,
        lambda_limits,
        state_machines,
        execution_limits,
        schedules,
        kinesis_service,
        cloudwatch,
        alarms,
        cloudformation,
        emr_service,
        service_metrics,
        transport,
        log_queries,
        dynamodb_indexes,
        request_models,
        paging,  # Last: it stands before what the others have put in place.
    )
    return tuple(patch for module in modules for patch in module.PATCHES)


def main(arguments: list[str]) -> None:
    """Run the server until standard input closes or SIGTERM comes."""
    settings = ServerSettings.from_json(sys.stdin.readline())
    try:
        check(())  # The version first: importing the patches already needs ministack's modules.
        apply_all(patches(), settings)
    except (MinistackMismatch, ImportError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    ending = threading.Lock()

    def end() -> NoReturn:
        with ending:
            _end(settings)

    parent = os.getppid()
    threading.Thread(target=_watch_parent, args=(parent, end), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: end())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher, which ends us.
    _raise_descriptor_limit()
    _serve(arguments, settings)


def _serve(listening_descriptors: list[str], settings: ServerSettings) -> None:
    from shardfleet_local.aws.admin import application  # noqa: PLC0415

    config = Config()
    plain, *with_tls = [f"fd://{descriptor}" for descriptor in listening_descriptors]
    config.bind = with_tls or [plain]
    if with_tls:  # What hypercorn says it speaks (ALPN): h2, http/1.1.
        config.certfile = config.keyfile = settings.behaviour.certificate
        config.insecure_bind = [plain]
    config.keep_alive_timeout = 75
    config.accesslog = None

    async def run() -> None:
        # Without a trigger of its own hypercorn would take SIGINT and SIGTERM over.
        await serve(application(settings), config, shutdown_trigger=asyncio.Event().wait)  # type: ignore[arg-type]

    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415

        uvloop.install()
    asyncio.run(run())


def _watch_parent(parent: int, end: Callable[[], NoReturn]) -> None:
    while True:
        readable, _, _ = select.select([0], [], [], PARENT_LOOK_S)
        if (readable and not os.read(0, 1024)) or os.getppid() != parent:
            end()


def _end(settings: ServerSettings) -> NoReturn:
    """Kill the Lambda processes, remove the private folder and leave at once."""
    from shardfleet_local.aws import lambda_service  # noqa: PLC0415

    lambda_service.kill_all()
    shutil.rmtree(settings.folder, ignore_errors=True)
    os._exit(0)


def _raise_descriptor_limit() -> None:
    """Take as many open files as allowed: each Lambda process needs four."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource  # noqa: PLC0415

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main(sys.argv[1:])
