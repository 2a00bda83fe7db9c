"""
The fleet in a program of one's own, as plain processes.

    async with Worker(stream="clicks", application="clicks", handler=handle) as worker:
        await worker.run()

The engine has a thread and an event loop of its own, and the handler another one: neither stops
when the program's loop is busy, and a handler that blocks stops neither.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Self

from msgspec.structs import replace

from shardfleet.adapters.clients.account_access import Access, AccountClients
from shardfleet.adapters.dynamodb.tables import (
    ensure_lease_table,
    ensure_state_table,
    has_table,
)
from shardfleet.adapters.system import SystemEntropy
from shardfleet.config import FleetConfig
from shardfleet.engine.retry import Halt
from shardfleet.errors import ConfigurationError
from shardfleet.runtime.bootstrap import Sandbox, open_sandbox
from shardfleet.runtime.handler_loading import LoadedHandler, as_handler, load_handler
from shardfleet_processes.composition import run_process
from shardfleet_processes.process import OF_PROCESSES

_VCPU_MB = 1_769  # Of one interpreter, as of a function with one vCPU.


def state_table_of(application: str) -> str:
    """Return the name of the fleet-state table of an application."""
    return f"{application}-fleet"


class Worker:
    """
    One process's part of a fleet; entered once.

    Args:
        stream: name or ARN.
        application: name of the lease table, as of a KCL application, and of the fleet; or the
            fleet of a stack that spills, as its manager has it, which says every option.
        handler: a function or class, or its name, ``package.module:function``.
        creates_tables: whether tables that are missing are made.
        metrics: ``none``, or ``emf``: metrics as log lines, which CloudWatch Logs would bill as
            metrics.
        health: where a probe sees that the engine goes on: ``HOST:PORT``, which answers HTTP, or a
            file that is touched each second; empty: nowhere.
        options: of :class:`~shardfleet.FleetConfig`, by their names.

    Raises:
        ConfigurationError: an option is wrong; on entering, also: there is no such stream, or a
            table is missing.

    """

    def __init__(
        self,
        *,
        stream: str,
        application: str | FleetConfig,
        handler: Callable[..., Any] | str,
        creates_tables: bool = True,
        metrics: str = "none",
        health: str = "",
        **options: Any,
    ) -> None:
        """Check the options; nothing is asked of AWS."""
        self._stream = stream
        self._handler = handler
        self._creates_tables = creates_tables
        self._has_metrics = metrics == "emf"
        self._health = health
        named = handler if isinstance(handler, str) else _name_of(handler)
        if isinstance(application, FleetConfig):
            self._config = _joined(application, handler=named)
        else:
            self._config = FleetConfig(
                **{
                    **OF_PROCESSES,
                    **options,
                    "fleet": application,
                    "lease_table": application,
                    "state_table": state_table_of(application),
                    "stream_arn": stream,
                    "handler": named,
                }
            )
        self._sandbox: Sandbox | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._halt = Halt()
        self._ended: Future[None] | None = None

    async def __aenter__(self) -> Self:
        """Look for the stream, and make the tables that are missing."""
        self._sandbox = await asyncio.to_thread(self._open)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Hand over, and wait until that is done."""
        self.stop()
        if self._ended is not None:
            await asyncio.shield(asyncio.wrap_future(self._ended))

    async def run(self) -> None:
        """
        Work until stopped.

        Raises:
            ShardfleetError: the engine has ended by itself.

        """
        if self._ended is None:
            self._ended = Future()
            threading.Thread(target=self._main, name="shardfleet", daemon=True).start()
        await asyncio.shield(asyncio.wrap_future(self._ended))

    def stop(self) -> None:
        """Let the batches in hand end, checkpoint, and hand over; returns at once."""
        if self._loop is None:
            self._halt.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._halt.set)

    def _main(self) -> None:
        """Run the engine: in its thread."""
        if self._ended is None or self._sandbox is None:
            raise ConfigurationError("run: only within `async with`")
        host = f"{socket.gethostname()}-{os.getpid()}-{SystemEntropy().token()[:8]}"
        try:
            with asyncio.Runner() as runner:
                self._loop = runner.get_loop()
                runner.run(run_process(self._sandbox, host, self._halt, health=self._health))
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    def missing(self) -> list[str]:
        """
        Return what is not there yet, a line for each; asks AWS, and changes nothing.

        Raises:
            ConfigurationError: there is no such stream.

        """
        clients, config = self._clients(), self._config
        clients.stream_arn(self._stream)
        tables = (config.lease_table, config.state_table)
        return [f"no table {name}" for name in tables if not has_table(clients.table_reads, name)]

    def _clients(self) -> AccountClients:
        return AccountClients(Access(), stream=self._stream)

    def _open(self) -> Sandbox:
        clients = self._clients()
        config = replace(self._config, stream_arn=clients.stream_arn(self._stream))
        if self._creates_tables:
            ensure_lease_table(clients.table_reads, config.lease_table)
            ensure_state_table(clients.table_reads, config.state_table)
        return open_sandbox(
            {**os.environ, **config.to_env()},
            memory_mb=_VCPU_MB,
            load=partial(_load, self._handler) if callable(self._handler) else load_handler,
            lines=sys.stderr,
            has_emf=self._has_metrics,
        )


def _joined(found: FleetConfig, *, handler: str) -> FleetConfig:
    """
    Return what a process of a stack's fleet is told: what Lambda's slots are, but for its turns.

    Raises:
        ConfigurationError: the stack leaves nothing to processes.

    """
    if not found.spill:
        raise ConfigurationError(
            f"fleet {found.fleet}: its stack runs all of it; deploy it with `spill=True`"
        )
    turns = {name: OF_PROCESSES[name] for name in ("max_turn_ms", "start_allowance_ms")}
    return replace(found, handler=handler, handler_contract="auto", **turns)


def _load(handler: Callable[..., Any], name: str, *, contract: str) -> LoadedHandler:
    return as_handler(handler, name=name, contract=contract)


def _name_of(handler: Callable[..., Any]) -> str:
    kind = type(handler)
    name = getattr(handler, "__qualname__", kind.__qualname__)
    return f"{getattr(handler, '__module__', kind.__module__)}:{name}"
