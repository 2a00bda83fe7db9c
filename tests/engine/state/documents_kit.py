"""
A document of each kind, as this release writes it, and as each release before has written it.

`python -m tests.engine.state.documents_kit` writes those of this release anew, into a folder of
its version; those of a release that is out stay as they are, for the next one must read them.
"""

import json
import tomllib
from pathlib import Path

from shardfleet.domain.balance.loads import Loads, WorkerUse
from shardfleet.domain.cost.usage import Consumption
from shardfleet.domain.delivery.lanes import LanesNote
from shardfleet.domain.delivery.stops import StopNote
from shardfleet.domain.delivery.windows import WindowNote
from shardfleet.domain.leases.expiry import Sighting
from shardfleet.domain.leases.foreign_owners import Foreign
from shardfleet.domain.leases.handovers import Handover
from shardfleet.domain.leases.stamps import Stamp
from shardfleet.domain.reasons import (
    HoldsFewest,
    MayHaveRecords,
    Pause,
)
from shardfleet.domain.sleep.pauses import Migration, Pauses
from shardfleet.domain.sleep.sleep import Glance, Nap
from shardfleet.domain.slots.failure import FailureKind, LastFailure
from shardfleet.domain.slots.sizing import Pace
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.stream.gone_shards import GoneNote
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber, StreamIncarnation
from shardfleet.domain.turn_log import Entry, Happening, Place
from shardfleet.engine.manager.history import History
from shardfleet.engine.ports import Document
from shardfleet.engine.state.beside import KnownTip, LeaseNotes, raise_generation
from shardfleet.engine.state.fleet_state import MANAGER, FleetState
from shardfleet.engine.state.gone_record import GoneRecord
from shardfleet.engine.state.kinds import (
    KINDS,
    LANES,
    NOTE,
    PROMPT,
    SUSPECTS,
    WINDOW,
    CrashNote,
    kind_of,
)
from shardfleet.engine.state.ledger import Ledger
from shardfleet.engine.state.pauses import PauseRecord
from shardfleet.engine.state.rows import write_rows
from shardfleet.engine.state.sleep_state import NapRecord
from shardfleet_processes.offers import OfferLauncher
from shardfleet_testkit.clock import VirtualClock, run_virtual
from shardfleet_testkit.memory import MemoryStateStore
from tests.engine.manager_side.fleet_kit import ARN, Fleet, four_shards

KEY = "shardId-000000000000"
WORKER = "f-s0001"
NOW_MS = 1_700_000_000_000
FIXTURES = Path(__file__).parent / "documents"
ROOT = Path(__file__).parents[3]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

STAMP = Stamp(generation=1, owner=WORKER, counter=12, switches=1, stood="5:0")
SLOT_RECORD = Slot(
    slot_id="s0001",
    worker_id=WORKER,
    state=SlotState.RUNNING,
    name="f-s0001-3",
    start_epoch=3,
    generation=1,
    epoch=7,
    assign_seq=5,
    served_seq=4,
    assigned=(KEY,),
    started_ms=NOW_MS,
    heartbeat_ms=NOW_MS,
    turn_open=True,
    open_turns=1,
    lags_ms={KEY: 12},
    busy=500,
    cpu=250,
    leaving_ms=NOW_MS,
    claimed_by="token",
    failure=LastFailure(
        kind=FailureKind.TURN,
        message="it failed",
        where="handler.py:7",
        times=2,
        first_ms=NOW_MS,
        last_ms=NOW_MS,
        epoch=6,
    ),
)


async def write_all(store):
    """Write a document of each kind but the plan by who writes it in the fleet, all fields set."""
    state = FleetState(store, VirtualClock())
    await _write_workers(state, store)
    await state.check_incarnation(StreamIncarnation(ARN, 1_600_000_000_000))
    await store.write(PROMPT, MANAGER, {"hold": 7}, expected_version=None)
    await state.take_lock("holder", duration_ms=1_000, longest_ms=2_000, function="f-manager")
    await state.write_pace(Pace(surplus_ms=NOW_MS, raised_ms=NOW_MS), None)
    await state.write_loads(Loads({KEY: 7}, {WORKER: WorkerUse(7, 8, 9)}))
    await state.write_sightings({KEY: Sighting(7, WORKER, NOW_MS, is_renewed=False)})
    await state.write_handovers({KEY: Handover(WORKER, "f-s0002", NOW_MS)})
    await state.write_finished([KEY])
    await write_rows(store, SUSPECTS, {KEY: [2, NOW_MS]})
    entry = Entry(
        what=Happening.MOVED, subject=KEY, worker_id=WORKER, before="x", reason=HoldsFewest(1)
    )
    await History(store).write_turn(NOW_MS, [entry])
    await History(store).write_places({}, {KEY: Place(NOW_MS, entry)})
    offers = OfferLauncher(store, host="pod-1", clock=VirtualClock(), failover_ms=10_000)
    await offers.beat(NOW_MS, is_leaving=True)
    await offers.start("f-s0001-3-0", SLOT_RECORD.slot_input().execution_text())
    [(name, offer)] = (await offers.look()).offers.items()
    await offers.take(name, offer)
    await offers.finish(name, offer)
    await offers.publish({"SHARDFLEET_FLEET": "f"})
    pause = Pause("anna", NOW_MS, "deploy")
    pauses = Pauses(
        fleet=pause,
        leases={KEY: pause},
        migration=Migration(direction="to-java", by="anna", since_ms=NOW_MS),
    )
    await PauseRecord(store).change(lambda _: pauses)


async def _write_workers(state, store):
    await state.write_slot(SLOT_RECORD, None)
    crash = CrashNote(
        lease_key=KEY, first="7:0", last="9:2", count=3, crashes=1, is_open=True, stamp=STAMP
    )
    await state.write_beside(NOTE, crash)
    stop = StopNote(
        lease_key=KEY,
        position="7:0",
        error="ValueError (handler.py:7)",
        attempts=3,
        worker_id=WORKER,
        at_ms=NOW_MS,
        retry_ms=NOW_MS,
    )
    await state.write_stop(stop)
    ahead = {"2": {"1": "12:0"}}
    lanes = LanesNote(
        lease_key=KEY, since="5:0", through="9:0", ahead=ahead, between=("7:0",), stamp=STAMP
    )
    await state.write_beside(LANES, lanes)
    window = WindowNote(
        lease_key=KEY,
        since="5:0",
        through="9:0",
        start_ms=NOW_MS,
        state='{"n":1}',
        kept_at="s3://b",
        between=("7:0",),
        stamp=STAMP,
    )
    await state.write_beside(WINDOW, window)
    await state.pin(KEY, instant_ms=NOW_MS, created_ms=1_600)
    used = Consumption(mb_ms=1, requests=2, transitions=3, read_tenths=4, write_tenths=5)
    await Ledger(store).add("s0001", used, metrics=["records"], at_ms=NOW_MS)
    await _write_waiting(store)


async def _write_waiting(store):
    await raise_generation(store, KEY, now_ms=NOW_MS, to="TRIM_HORIZON:0", first="7")
    await LeaseNotes(FleetState(store, VirtualClock())).write_tip(
        KEY, KnownTip(at_ms=NOW_MS, done="9:0", told="5:0")
    )
    naps = NapRecord(store)
    await naps.begin(
        Nap(
            lease_key=KEY,
            worker_id=WORKER,
            since_ms=NOW_MS,
            done=ExtendedSequenceNumber("9", 1),
            after="9",
            iterator="AAA=",
            made_ms=NOW_MS,
        )
    )
    await naps.store_glances({KEY: Glance(NOW_MS, "AAA=", NOW_MS, NOW_MS, 1)})
    await naps.note_foreign(Foreign("java-1", NOW_MS))
    gone = GoneNote(
        lease_key=KEY,
        first_ms=NOW_MS,
        unlisted_ms=NOW_MS,
        known_ms=NOW_MS,
        checkpoint="9",
        reason=MayHaveRecords(),
        ended_by="anna",
    )
    await GoneRecord(store).write(gone, None)


def written():
    """Return a document of each kind as this release writes it, by kind."""

    async def main():
        store = MemoryStateStore()
        await write_all(store)
        fleet = Fleet(four_shards())
        await fleet.manager.turn()
        plan = fleet.store.documents["plan", "last"]
        return [*store.documents.values(), plan]

    return {kind_name(document.kind): document for document in run_virtual(main())}


def kind_name(name):
    """Return the declared name of a document's kind; of a dated one without its day."""
    found = kind_of(name)
    return next(str(kind) for kind in KINDS if found == kind or found.startswith(f"{kind} "))


def kept(path):
    """Read a fixture."""
    return Document(**json.loads(path.read_text()))


def main():
    """Write the fixtures of this release."""
    folder = FIXTURES / VERSION
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in written().items():
        facts = {
            "kind": document.kind,
            "id": document.id,
            "version": document.version,
            "body": document.body,
        }
        (folder / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
