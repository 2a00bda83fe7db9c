"""The note of another application in the lease table: kept, replaced, and taken back."""

from shardfleet.domain.leases.foreign_owners import Foreign
from shardfleet.engine.state.sleep_state import NapRecord
from shardfleet_testkit.memory import MemoryStateStore
from tests.virtual import virtual


@virtual
async def test_another_application_is_noted_as_last_seen_and_forgotten_when_it_is_gone():
    store = MemoryStateStore()
    record = NapRecord(store)
    await record.note_foreign(None)
    assert store.documents == {}
    for foreign in (Foreign("java-1", 1_000), Foreign("java-2", 2_000), None):
        await record.note_foreign(foreign)
        assert await record.foreign() == foreign
    assert store.documents == {}
