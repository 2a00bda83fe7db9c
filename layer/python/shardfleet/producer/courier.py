"""
Requests out, answers in: the part of a producer that talks to the stream.

It runs as one task while records wait, and not at all otherwise. A call to the stream is never
cancelled half-way by the producer; if the loop is shut down, what was in flight goes back to its
lane, because nobody knows whether it arrived.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from shardfleet.engine.ports import Clock, Entropy, PutOutcome, StreamWriter
from shardfleet.engine.retry import ATTEMPTS_MOST
from shardfleet.errors import (
    InvalidRecord,
    OutcomeUnknown,
    StreamGone,
    Throttled,
    Unsettled,
    settled,
)
from shardfleet.producer.calls import Part, PutCall, all_records
from shardfleet.producer.lanes import Lane, Lanes
from shardfleet.producer.requests import Portion, Request, RequestEntry, next_request
from shardfleet.producer.settings import (
    ProducerCounts,
    ProducerSettings,
    ShardAnswer,
)

_LISTINGS_MOST = 5
_NOT_ACCEPTED = PutOutcome(error_code="NotAccepted")
_Again = dict[Lane, list[Part]]
"""What is to be sent again, of each lane in its order."""


class Courier:
    """
    Carries the records of the lanes to the stream.

    Args:
        writer: the stream.
        clock: for pauses and pace.
        entropy: for jitter.
        settings: limits.
        observe: called with what each request did to each shard.
        on_failure: called when no call that is open can be carried on with, with the reason.

    Attributes:
        lanes: what waits.
        counts: what has happened so far.

    """

    def __init__(
        self,
        writer: StreamWriter,
        *,
        clock: Clock,
        entropy: Entropy,
        settings: ProducerSettings,
        observe: Callable[[ShardAnswer], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._entropy = entropy
        self._settings = settings
        self._observe = observe
        self._on_failure = on_failure
        self._running: asyncio.Task[None] | None = None
        self._in_flight: dict[asyncio.Task[None], Request] = {}
        self._changed = asyncio.Event()
        self._listing = asyncio.Lock()
        self._refusal: Exception | None = None  # of the last request as a whole
        self._denials = 0  # requests in a row of which it was said that there is no such stream
        self.lanes = Lanes(settings)
        self.counts = ProducerCounts()

    def accept(self, part: Part, *, due_ms: float) -> None:
        """Take records, and see to it that somebody carries them; needs a running event loop."""
        self.lanes.accept(part, due_ms=due_ms, now_ms=self._clock.monotonic_ms())
        self._see_to_it()

    def hurry(self) -> None:
        """Let nothing linger any longer."""
        self.lanes.hurry(self._clock.monotonic_ms())
        self._see_to_it()

    def forget(self) -> None:
        """Let nothing wait that nobody asks for any more."""
        self.lanes.forget()
        self._changed.set()

    async def part_with(self, call: PutCall) -> None:
        """Forget what a failed call has waiting, and return when nothing of it is on its way."""
        while carrying := [task for task, its in self._in_flight.items() if its.has(call)]:
            await asyncio.wait(carrying)
        self.forget()
        # Whoever fails with the last of all that is to be sent leaves no task behind.
        while not self._in_flight and not self.lanes.anything_waits and self._is_running:  # noqa: ASYNC110 - twice at most
            await asyncio.sleep(0)

    @property
    def _is_running(self) -> bool:
        return self._running is not None and not self._running.done()

    def _see_to_it(self) -> None:
        if self.lanes.anything_waits and not self._is_running:
            # Made anew with each task: the next call may come from another event loop.
            self._changed, self._listing = asyncio.Event(), asyncio.Lock()
            self._in_flight = {}
            self._running = asyncio.create_task(self._run(), name="shardfleet producer")
        self._changed.set()

    async def _run(self) -> None:
        """Carry until nothing waits."""
        in_flight = self._in_flight
        try:
            if not self.lanes.map.shards:
                await self._learn()
            while in_flight or self.lanes.anything_waits:
                self._changed.clear()
                while len(in_flight) < self._settings.max_requests:
                    now_ms = self._clock.monotonic_ms()
                    request = next_request(self.lanes, self._settings, now_ms=now_ms)
                    if request is None:
                        break
                    task = asyncio.create_task(self._carry(request), name="PutRecords")
                    in_flight[task] = request
                    task.add_done_callback(self._arrived)
                if in_flight or self.lanes.anything_waits:  # What waited may be wanted no more.
                    await self._wait(full=len(in_flight) >= self._settings.max_requests)
        except Exception as error:  # noqa: BLE001 - no caller may wait for a task that has ended
            await asyncio.gather(*in_flight)
            # Records that were being taken for a request are in no lane; some lanes are left busy.
            self.lanes = Lanes(self._settings)
            self._on_failure(error)
        finally:
            for task in in_flight:
                task.cancel()

    def _arrived(self, task: asyncio.Task[None]) -> None:
        self._in_flight.pop(task, None)
        self._changed.set()

    async def _wait(self, *, full: bool) -> None:
        """Wait until an answer or a record comes, or a lane is ready."""
        now_ms = self._clock.monotonic_ms()
        at_ms = math.inf if full else self.lanes.next_at_ms(now_ms)
        if at_ms == math.inf:
            await self._changed.wait()
            return
        seconds = max(0.0, at_ms - now_ms) / 1000
        ready = asyncio.get_running_loop().call_later(seconds, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            ready.cancel()

    async def _carry(self, request: Request) -> None:
        """
        Send one request and bring everything back that was not accepted.

        If it is refused as it is, it is divided until what is at fault is alone: a key stands in
        one entry only, so halves may be sent in any order, whatever becomes of either.
        """
        again: _Again = {portion.lane: [] for portion in request.portions}
        unsent = [request]
        try:
            while unsent:
                sending = unsent[-1]
                halves = await self._send(sending, again)
                unsent[-1:] = reversed(halves)
        except asyncio.CancelledError:
            for portion in (portion for each in unsent for portion in each.portions):
                again[portion.lane] += portion.parts
            raise
        finally:
            now_ms = self._clock.monotonic_ms()
            for lane, parts in again.items():
                self.lanes.arrive(lane, parts, now_ms=now_ms)

    async def _send(self, request: Request, again: _Again) -> Sequence[Request]:
        """Send a request, note what goes again, and return what is to be sent instead of it."""
        try:
            outcomes = await self._put(request)
            await self._learn_from(request, outcomes)
            self._settle(request, outcomes, again)
        except InvalidRecord as error:
            if not request.is_divisible:
                _fail(request, error)
            elif len(request.puts) > 1:
                return request.halves()
            else:
                (portion,) = request.portions
                again[portion.lane] += portion.entries[0].apart()
        except Exception as error:  # noqa: BLE001 - whatever it is, the callers must hear of it
            _fail(request, error)
        return ()

    async def _put(self, request: Request) -> Sequence[PutOutcome]:
        puts = request.puts
        self.counts.requests += 1
        try:
            outcomes = await self._writer.put_records(puts)
        except StreamGone as error:  # Once may be a lie.
            self._denials += 1
            if self._denials >= ATTEMPTS_MOST:
                raise
            self._refusal = error
        except (Throttled, OutcomeUnknown) as error:
            self._refusal = error
            self.counts.unanswered += isinstance(error, OutcomeUnknown)
            verdict = settled(error)
            # It may pass yet; until then it must not keep others from what they came for.
            if isinstance(verdict, InvalidRecord) and request.is_divisible:
                raise verdict from error
        else:
            self._refusal, self._denials = None, 0
            return outcomes
        return [_NOT_ACCEPTED] * len(puts)

    async def _learn_from(self, request: Request, outcomes: Sequence[PutOutcome]) -> None:
        """List the shards if an answer names one that was not expected."""
        answers = iter(outcomes)
        for portion in request.portions:
            for outcome in (next(answers) for _ in portion.entries):
                shard_id = outcome.shard_id
                if shard_id is None or shard_id == portion.lane.shard_id:
                    continue
                async with self._listing:
                    # Another request may have met the same shard and listed meanwhile.
                    if not self.lanes.map.takes_records(shard_id):
                        await self._learn()

    async def _learn(self) -> None:
        """List the shards; if that is throttled for too long, what is known stays."""
        flow = self._settings.flow
        for attempt in range(_LISTINGS_MOST):
            try:
                self.counts.listings += 1
                found = await self._writer.list_shards()
            except Throttled:
                delay_ms = min(flow.pause_first_ms << attempt, flow.max_pause_ms)
                await self._clock.sleep_ms(self._jittered(delay_ms))
            else:
                self.lanes.learn(found, now_ms=self._clock.monotonic_ms())
                return

    def _settle(self, request: Request, outcomes: Sequence[PutOutcome], again: _Again) -> None:
        """Hand out receipts, and note what goes again."""
        answers = iter(outcomes)
        for portion in request.portions:
            refused = 0
            back: list[Part] = []
            for entry in portion.entries:
                outcome = next(answers)
                if outcome.shard_id is None or outcome.sequence_number is None:
                    refused += 1
                    back += entry.parts
                    continue
                self.counts.entries += 1
                if self._is_misrouted(portion, entry, outcome.shard_id):
                    self.counts.misrouted += 1
                    back += entry.parts
                else:
                    self._hand_out(entry, outcome.shard_id, outcome.sequence_number)
            self.counts.refused += refused
            self._adapt(portion, refused)
            again[portion.lane] += self._not_too_late(back)

    def _is_misrouted(self, portion: Portion, entry: RequestEntry, shard_id: str) -> bool:
        """Return whether a consumer with Java's rule would drop the aggregate."""
        if not entry.aggregated or shard_id == portion.lane.shard_id:
            return False
        return not all(self.lanes.owns(shard_id, each) for each in all_records(entry.parts))

    def _hand_out(self, entry: RequestEntry, shard_id: str, sequence_number: str) -> None:
        sub = 0
        for part in entry.parts:
            first = sub if entry.aggregated else None
            part.call.accept(part, shard_id, sequence_number, first=first)
            sub += len(part)
        self.counts.accepted += sub

    def _adapt(self, portion: Portion, refused: int) -> None:
        """Let the lane's flow follow the answer, and begin the pause."""
        lane, counts = portion.lane, self.counts
        self.lanes.judge(lane, sent=len(portion.entries), refused=refused)
        flow, now_ms = lane.flow, self._clock.monotonic_ms()
        lane.not_before_ms = now_ms + self._jittered(flow.pause_ms) if flow.pause_ms else 0
        counts.max_pause_ms = max(counts.max_pause_ms, flow.pause_ms)
        counts.min_batch = min(flow.batch, counts.min_batch or flow.batch)
        self._observe(
            ShardAnswer(
                shard_id=lane.shard_id,
                at_ms=now_ms,
                sent=len(portion.entries),
                refused=refused,
                batch=flow.batch,
                pause_ms=flow.pause_ms,
            )
        )

    def _not_too_late(self, parts: Sequence[Part]) -> list[Part]:
        """Give up what has been refused for too long; return the rest."""
        now_ms = self._clock.monotonic_ms()
        late = [part for part in parts if now_ms > part.call.until_ms]
        for part in late:
            part.call.fail(self._why_given_up(part.call.left), len(part))
        return [part for part in parts if now_ms <= part.call.until_ms and not part.call.is_stopped]

    def _why_given_up(self, left: int) -> Exception:
        refusal = self._refusal
        if isinstance(refusal, Unsettled):
            return refusal.verdict
        why = refusal or "Write more slowly, or give the stream more shards"
        return Throttled(
            f"{left} records are still refused after {self._settings.give_up_ms} ms. {why}"
        )

    def _jittered(self, pause_ms: int) -> float:
        """Return half of the pause to all of it: producers that failed together part ways."""
        return self._entropy.uniform(pause_ms / 2, pause_ms)


def _fail(request: Request, error: Exception) -> None:
    for part in (part for portion in request.portions for part in portion.parts):
        part.call.fail(error, len(part))
