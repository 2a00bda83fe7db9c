"""A fleet in memory whose every name, key, owner, reason and error is one text."""

from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.stops import StopNote
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet_testkit.clock import VirtualClock
from shardfleet_testkit.memory import MemoryLeaseStore, MemoryStateStore
from shardfleet_testkit.memory_stream import MemoryStream
from tests.cli.memory_access import memory_access
from tests.domain.builders import a_lease


class Names:
    """What the hostile fleet's things are called."""

    def __init__(self, text):
        self.text = text
        self.stopped, self.paused, self.gone, self.broken = (f"{text}{n}" for n in range(4))
        self.stop = StopNote(
            lease_key=self.stopped, position=text, error=text, attempts=3, worker_id=text, at_ms=1
        )


async def hostile_fleet(names):
    """A fleet whose every name, key, owner, reason and error is the text."""
    clock, text = VirtualClock(), names.text
    stream = MemoryStream(clock, shards=2)
    for shard_id in stream.open_shard_ids:
        stream.put(text.encode(), key=text, shard_id=shard_id)
    first, second = stream.open_shard_ids
    leases = MemoryLeaseStore(
        [
            replace(a_lease(f"{first} at 5"), lease_owner=text),
            replace(a_lease(f"{second} at 5"), lease_owner=f"{text} another"),
            *(
                replace(a_lease("x at 5"), lease_key=key, lease_owner=text)
                for key in (names.stopped, names.paused, names.gone, names.broken)
            ),
        ]
    )
    leases.unreadable[names.broken] = text
    state = FleetState(MemoryStateStore(), clock)
    slot = Slot(slot_id=text, worker_id=text, state=SlotState.RUNNING, name=text, start_epoch=1)
    await fill(state, names, slot)
    config = FleetConfig(fleet=text, stream_arn=f"arn:x:{text}", lease_table=text, state_table=text)
    return memory_access(config, leases=leases, state=state, stream=stream, clock=clock)


async def fill(state, names, slot):
    """Write the fleet's documents, as workers, the manager and people write them."""
    text = names.text
    await state.write_slot(slot, None)
    await state.write_stop(names.stop)
    why = {"by": text, "since_ms": 1, "reason": text}
    documents = {
        ("pause", "fleet"): {"fleet": None, "leases": {names.paused: why}},
        ("gone", names.gone): {
            "first_ms": 1,
            "unlisted_ms": 1,
            "known_ms": 1,
            "checkpoint": text,
            "reason": {"is": "UpkeepFailed", "task": text, "error": text},
            "ended_by": "",
        },
        ("plan", "last"): {"at_ms": 1, "left": [[names.gone, _reason(text)]]},
        ("places", "00"): {"leases": [_entry(text, names.stopped, at_ms=1_700_000_000_000)]},
        ("turn", "001700000000000-00"): {
            "at_ms": 1_700_000_000_000,
            "entries": [
                _entry(text, names.stopped),
                ["SLOT_FAILED", text, text, "", _reason(text)],
                ["SIZED", "fleet", "", "", _reason(text)],
            ],
        },
    }
    for (kind, name), body in documents.items():
        await state.store.raw.write(kind, name, body, expected_version=None)


def _reason(text):
    return {"is": "UpkeepFailed", "task": text, "error": text}


def _entry(text, key, at_ms=None):
    row = ["TAKEN_OVER", key, text, f"{text} before", _reason(text)]
    return row if at_ms is None else [at_ms, *row]
