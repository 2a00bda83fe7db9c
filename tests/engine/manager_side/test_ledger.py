"""The ledger: added up by day and writer, never in the way."""

from shardfleet.domain.cost.usage import Consumption
from shardfleet.engine.state import ledger
from shardfleet.engine.state.ledger import Ledger, day_of
from shardfleet.errors import Throttled
from shardfleet_testkit.memory import MemoryStateStore
from tests.virtual import virtual

NOON = 1_795_262_400_000  # 2026-11-21 12:00 UTC
DAY = 86_400_000
USED = Consumption(mb_ms=512_000, requests=1, read_tenths=15, log_bytes=300)


def test_a_day_of_aws_is_a_day_in_utc():
    assert day_of(NOON) == "2026-11-21"
    assert day_of(NOON + DAY // 2 - 1) == "2026-11-21"
    assert day_of(NOON + DAY // 2) == "2026-11-22"


@virtual
async def test_what_a_writer_uses_on_a_day_is_added_up_apart_from_others_and_other_days():
    store = MemoryStateStore()
    book = Ledger(store)
    for writer, at_ms in (("manager", NOON), ("manager", NOON + 1), ("s1", NOON)):
        assert await book.add(writer, USED, metrics=["lag"], at_ms=at_ms)
    await book.add("manager", USED, metrics=["records"], at_ms=NOON + DAY)
    await book.add("manager", USED, metrics=["lag"], at_ms=NOON + DAY)
    pages = {(page.day, page.writer): page for page in await book.pages(at_ms=NOON + DAY, days=2)}
    assert list(pages) == [
        ("2026-11-21", "manager"),
        ("2026-11-21", "s1"),
        ("2026-11-22", "manager"),
    ]
    assert pages["2026-11-21", "manager"].used == USED + USED
    assert pages["2026-11-21", "s1"].used == USED
    assert pages["2026-11-22", "manager"].metrics == {"lag", "records"}
    body = store.documents["ledger 2026-11-21", "s1"].body
    assert (body["day"], body["writer"]) == ("2026-11-21", "s1")
    expiry = store.expires_ms["ledger 2026-11-21", "s1"]
    assert expiry == NOON + ledger.KEPT_DAYS * DAY
    first = pages["2026-11-21", "manager"]
    assert (first.began_ms, first.until_ms) == (NOON, NOON + 1)
    assert [page.day for page in await book.pages(at_ms=NOON + DAY)] == ["2026-11-22"]


@virtual
async def test_a_page_of_a_later_version_is_read_as_far_as_it_is_known():
    store = MemoryStateStore()
    body = {"used": {"requests": 7, "coffees": 3}, "metrics": [], "weather": "fine"}
    await store.write("ledger 2026-11-21", "manager", body, expected_version=None)
    (page,) = await Ledger(store).pages(at_ms=NOON)
    assert page.used == Consumption(requests=7)


@virtual
async def test_a_writer_in_between_is_added_to_and_a_refusal_is_no_failure():
    store = MemoryStateStore()
    book = Ledger(store)
    await book.add("s1", USED, metrics=[], at_ms=NOON)
    read = store.read

    async def overtaken(kind, name):
        found = await read(kind, name)
        store.read = read
        await book.add("s1", USED, metrics=[], at_ms=NOON)
        return found

    store.read = overtaken
    assert await book.add("s1", USED, metrics=[], at_ms=NOON)
    (page,) = await book.pages(at_ms=NOON)
    assert page.used == USED + USED + USED

    async def refused(*_, **__):
        raise Throttled

    store.write = refused
    assert not await book.add("s1", USED, metrics=[], at_ms=NOON)
