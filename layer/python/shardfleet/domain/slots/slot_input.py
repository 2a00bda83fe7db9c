"""The input of a worker slot's execution and of its invocations, versioned (H3, H19)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardfleet.errors import ConfigurationError

INPUT_VERSION = 1  # a worker accepts this and the previous version (hazard H19)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotInput:
    """
    The input of a slot's execution and of its worker invocations.

    Attributes:
        slot_id: e.g. ``"s0003"``.
        name: ``<fleet>-<slot>-<start epoch>``; an execution's name adds ``-<generation>``.
        start_epoch: of the execution.
        generation: how often the execution has continued as new.
        crashes: consecutive crashes that the state machine has counted (not part of the
            execution's own input).

    """

    slot_id: str
    name: str
    start_epoch: int
    generation: int
    crashes: int = 0

    def execution_name(self) -> str:
        """Return the execution's name: derived, so that a start happens once (H3)."""
        return f"{self.name}-{self.generation}"

    def execution_text(self) -> str:
        """Return the exact bytes of the execution's input: same name, same input (H3)."""
        body = {
            "version": INPUT_VERSION,
            "slot": self.slot_id,
            "name": self.name,
            "start_epoch": self.start_epoch,
            "generation": self.generation,
        }
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def from_payload(cls, payload: object) -> SlotInput:
        """
        Read an invocation's payload, which may be any JSON value that somebody sent.

        Raises:
            ConfigurationError: it is no object, its version is unknown, a field is missing, or a
                number is none.

        """
        if not isinstance(payload, Mapping):
            message = f"worker input: {str(payload)[:80]!r} found, an object expected"
            raise ConfigurationError(message)
        version = payload.get("version")
        if version not in (INPUT_VERSION, INPUT_VERSION - 1):
            message = f"worker input: version {version!r} found, {INPUT_VERSION} expected"
            raise ConfigurationError(message)
        missing = {"slot", "name", "start_epoch", "generation"} - payload.keys()
        if missing:
            message = f"worker input: missing {', '.join(sorted(missing))}"
            raise ConfigurationError(message)
        return cls(
            slot_id=str(payload["slot"]),
            name=str(payload["name"]),
            start_epoch=_number(payload, "start_epoch"),
            generation=_number(payload, "generation"),
            crashes=_number(payload, "crashes"),
        )


def _number(payload: Mapping[str, Any], name: str) -> int:
    try:
        return int(payload.get(name, 0))
    except (TypeError, ValueError, OverflowError) as error:  # Overflow: int(float('inf'))
        message = f"worker input: {name} {payload[name]!r} found, a whole number expected"
        raise ConfigurationError(message) from error
