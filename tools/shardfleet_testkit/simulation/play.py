"""What a user brings to a simulated fleet: a handler, records, and what must be true at the end."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardfleet.engine.shard.failure_policy import FailurePolicy
from shardfleet.errors import ConfigurationError
from shardfleet.runtime.handler_loading import LoadedHandler, as_handler, load_handler
from shardfleet_testkit.simulation.sink import Sink

# Kinesis quota: characters of a partition key.
KEY_CHARACTERS_MOST = 256
_HOUR_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """
    A user's handler and what it is given.

    Attributes:
        handler: the function, or ``package.module:function``. A module that is named is imported
            anew by each invocation, so what it remembers is lost with it, as in Lambda.
        records: partition key and payload, in the order in which they are put.
        hours: how long records flow and faults happen, virtual hours.
        sink: the outside world; emptied when a run begins.
        contract: how the handler is called: ``native``, ``event`` or ``auto``.
        shards: at the beginning.
        has_faults: False: nothing goes wrong, no shard is split or merged.
        expected: what the sink must hold at the end; None: anything.
        check: called with the sink at the end; an AssertionError is a violation.
        policy: what becomes of records that failed for good; None: they are tried for ever. It
            does what it does in memory, and survives every worker.

    """

    handler: Callable[..., Any] | str
    records: tuple[tuple[str, bytes], ...]
    hours: float = 0.25
    sink: Sink = field(default_factory=Sink)
    contract: str = "auto"
    shards: int = 4
    has_faults: bool = True
    expected: Mapping[str, Any] | None = None
    check: Callable[[Sink], object] | None = None
    policy: FailurePolicy | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be played."""
        if not self.records:
            raise ConfigurationError("records: none found, at least one is needed")
        if not 0 < self.hours <= 24:  # noqa: PLR2004 - Kinesis keeps records for a day by default
            raise ConfigurationError(f"hours: {self.hours} found, more than 0 to 24 allowed")
        if self.shards < 1:
            raise ConfigurationError(f"shards: {self.shards} found, at least 1 allowed")

    @property
    def busy_s(self) -> float:
        """Return how long records flow, virtual seconds."""
        return self.hours * _HOUR_S

    def load(self) -> LoadedHandler:
        """
        Import the handler, as a new process would.

        Raises:
            ConfigurationError: there is no such handler, or it takes other parameters.

        """
        if not isinstance(self.handler, str):
            name = getattr(self.handler, "__qualname__", repr(self.handler))
            return as_handler(self.handler, name=name, contract=self.contract)
        module_name = self.handler.partition(":")[0]
        before = sys.modules.pop(module_name, None)
        importlib.invalidate_caches()
        try:
            return load_handler(self.handler, contract=self.contract)
        finally:
            if before is not None:
                sys.modules[module_name] = before


def records_of(
    given: Iterable[Any] | str | Path, *, key: str | None = None
) -> tuple[tuple[str, bytes], ...]:
    """
    Return records as partition key and payload.

    Args:
        given: pairs of a key and bytes, text or what JSON can say; or the path of a file of JSON
            lines.
        key: for a file, or for objects instead of pairs: the field with the partition key.

    Raises:
        ConfigurationError: names the record or the line, and what is wrong with it.

    """
    if isinstance(given, (str, Path)):
        return tuple(_lines(Path(given), key))
    return tuple(_record(item, key, where=f"record {n}") for n, item in enumerate(given, 1))


def _lines(path: Path, key: str | None) -> Iterable[tuple[str, bytes]]:
    if key is None:
        raise ConfigurationError(f"{path}: which field is the partition key? (key=, --key)")
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            item = json.loads(line)
        except ValueError as error:
            raise ConfigurationError(f"{where}: no JSON: {error}") from error
        yield _checked_key(_field(item, key, where=where), where), line.encode()


def _record(item: Any, key: str | None, *, where: str) -> tuple[str, bytes]:
    if key is not None:
        return _checked_key(_field(item, key, where=where), where), _payload(item, where)
    if not isinstance(item, (tuple, list)) or len(item) != 2:  # noqa: PLR2004 - a pair
        raise ConfigurationError(f"{where}: {item!r:.80} found, a pair of key and data expected")
    return _checked_key(item[0], where), _payload(item[1], where)


def _field(item: Any, key: str, *, where: str) -> Any:
    if not isinstance(item, dict) or key not in item:
        found = ", ".join(item) if isinstance(item, dict) else f"a {type(item).__name__}"
        raise ConfigurationError(f"{where}: no field {key!r}; found: {found:.200}")
    return item[key]


def _checked_key(value: Any, where: str) -> str:
    name = value if isinstance(value, str) else json.dumps(value)
    if not 0 < len(name) <= KEY_CHARACTERS_MOST:
        raise ConfigurationError(
            f"{where}: a partition key of {len(name)} characters, 1 to {KEY_CHARACTERS_MOST} "
            "allowed"
        )
    return name


def _payload(data: Any, where: str) -> bytes:
    if isinstance(data, (bytes, bytearray)):
        return bytes(data)
    if isinstance(data, str):
        return data.encode()
    try:
        return json.dumps(data).encode()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{where}: the data is no JSON: {error}") from error
