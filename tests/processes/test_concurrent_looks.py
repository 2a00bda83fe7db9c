"""The offers as two tasks of one process see them: what one looks at the other acts upon."""

from shardfleet.domain.slots.offers import Offer
from shardfleet_processes.offers import OfferLauncher
from shardfleet_testkit.clock import VirtualClock
from shardfleet_testkit.memory import MemoryStateStore
from tests.virtual import virtual

FAILOVER_MS = 10_000


class World:
    def __init__(self):
        self.store, self.clock = MemoryStateStore(), VirtualClock()

    def process(self, name):
        return OfferLauncher(self.store, host=name, clock=self.clock, failover_ms=FAILOVER_MS)

    def after(self, operation, deed):
        """Do something right after the first call of an operation."""
        call, waiting = getattr(self.store, operation), [deed]

        async def called(*words, **more):
            answer = await call(*words, **more)
            if waiting:
                await waiting.pop()()
            return answer

        setattr(self.store, operation, called)


@virtual
async def test_the_dead_are_forgotten_while_another_task_looks():
    world = World()
    leader = world.process("leader")
    for name in ("a", "b"):
        await world.process(name).beat(1)
    await leader.look()
    await world.clock.sleep_ms(10 * FAILOVER_MS + 1)

    async def others_forget():
        world.store.documents.clear()
        await leader.look()

    world.after("delete", others_forget)
    await leader.forget_the_dead()
    assert not world.store.documents


@virtual
async def test_an_offer_that_is_gone_meanwhile_is_taken_by_nobody():
    world = World()
    leader, process = world.process("leader"), world.process("a")
    await leader.start("f-s1-1-0", "{}")
    await process.beat(1)
    board = await process.look()
    world.store.documents.pop(("offer", "f-s1-1-0"))
    await process.look()  # its manager's
    assert board.to_take("a") == "f-s1-1-0"
    assert not await process.take("f-s1-1-0", Offer(name="f-s1-1-0", text="{}"))
