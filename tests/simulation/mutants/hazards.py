"""Mutants for the hazards H1 to H19, as far as they concern parts that exist."""

from __future__ import annotations

from tests.simulation.mutants.mutant import mutant

SLOTS, WRITER, POINTER = (
    "domain/slots/slot.py",
    "engine/ownership/writer.py",
    "engine/ownership/checkpointer.py",
)
STATE, WORKER, ASSIGNER = (
    "engine/state/fleet_state.py",
    "engine/worker/turn.py",
    "engine/manager/assigner.py",
)
NOTES, EXPIRY, POSITION = (
    "engine/shard/crash_notes.py",
    "domain/leases/expiry.py",
    "engine/shard/start.py",
)
LOSSES = "engine/manager/losses.py"
CURSOR, UPKEEP = "domain/reading/cursor.py", "engine/manager/slots.py"
PAGES, DISPATCH = "domain/reading/pages.py", "engine/shard/dispatch.py"
GONE, TURN = "domain/stream/gone_shards.py", "domain/turn.py"

_MANAGER_TESTS = "tests/engine/manager_side"
_WORKER_TESTS = "tests/engine/worker_side"

HAZARDS = (
    mutant(
        "an invocation raises no epoch",
        "H1",
        (SLOTS, "epoch=slot.epoch + 1,\n        heartbeat_ms=now_ms", "heartbeat_ms=now_ms"),
    ),
    mutant(
        "no look at the epoch after an unknown outcome",
        "H1",
        (WRITER, "        await self.check_epoch()\n        held.unsure.clear()\n", ""),
        arena="twins",
    ),
    mutant(
        "one more of the counter is mine without a doubt",
        "H1",
        (WRITER, "if held.unsure and await self._was_mine", "if await self._was_mine"),
        (WRITER, "            or current.checkpoint < min(held.unsure)\n", ""),
        (WRITER, "        await self.check_epoch()\n        held.unsure.clear()\n", ""),
        arena="twins",
    ),
    mutant(
        "an outdated invocation adopts",
        "H1",
        (POINTER, "            if keys:\n                await self._writer.check_epoch()\n", ""),
        (
            POINTER,
            "            if adopted:\n                await self._writer.check_epoch()\n",
            "",
        ),
        arena="twins",
    ),
    mutant(
        "a fenced invocation writes on",
        "H1",
        (WRITER, "        if self._fenced:\n", "        if not self.worker_id:\n"),
        arena="twins",
    ),
    mutant(
        "a slot ends whatever was announced",
        "H2",
        (SLOTS, "    if slot.assign_seq > served_seq:\n", "    if not slot.slot_id:\n"),
        arena="frozen looks",
    ),
    mutant(
        "an assignment is not announced",
        "H2",
        (
            ASSIGNER,
            "lambda current: announce_assignment(current, keys)",
            "lambda current: current",
        ),
    ),
    mutant(
        "what was assigned to a slot that ended stays there",
        "H2",
        (
            ASSIGNER,
            "if after is not None and after.slot.state is SlotState.ENDED:",
            "if not given:",
        ),
        arena="frozen assigns",
    ),
    mutant(
        "an older execution is welcome",
        "H3",
        (SLOTS, "slot.start_epoch != given.start_epoch", "slot.start_epoch < given.start_epoch"),
        arena="outdated twins",
    ),
    mutant(
        "an older generation is welcome",
        "H3",
        (
            SLOTS,
            "given.generation not in (slot.generation, slot.generation + 1)",
            "given.generation > slot.generation + 1",
        ),
        arena="outdated twins",
    ),
    mutant(
        "a closed execution is started for ever",
        "H3",
        (UPKEEP, "is ExecutionStatus.CLOSED:", "is ExecutionStatus.ABSENT:"),
        arena="stillborn",
    ),
    mutant(
        "reading goes on behind a checkpoint inside an aggregate",
        "H4",
        (PAGES, "StartingPosition(StartKind.AT_SEQ", "StartingPosition(StartKind.AFTER_SEQ"),
        (CURSOR, "        if self._witness is None or self", "        if self._shard_id or self"),
        arena="kills",
    ),
    mutant(
        "an aggregate begins anew at a checkpoint inside it",
        "H4",
        (
            "kpl/deaggregate.py",
            "return found.records[done.sub_sequence_number + 1 :]",
            "return found.records",
        ),
        arena="kills",
    ),
    mutant(
        "an empty answer with lag counts as the end of the record",
        "H6",
        (
            PAGES,
            "not self.records and self.resume_token is not None and bool(",
            "not self.records and self.resume_token is None and not bool(",
        ),
        arena="empty restarts",
    ),
    mutant(
        "the last pin holds, not the first",
        "H7",
        (
            STATE,
            "if pin.body.created_ms == created_ms:",
            "if pin.body.instant_ms == instant_ms:",
        ),
        arena="at the tip",
    ),
    mutant(
        "a pin goes by the manager's clock",
        "H7",
        (TURN, "return now_ms - PIN_BACK_MS", "return snapshot.at_ms"),
        arena="at the tip",
    ),
    mutant(
        "a refused step back loses the lease",
        "H8",
        (
            WRITER,
            "        if wanted != current.checkpoint:\n",
            '        self._lose(held, "a step back")\n        if wanted != current.checkpoint:\n',
        ),
        arena="other hands",
    ),
    mutant(
        "a record that kills is never given up",
        "H9",
        (NOTES, "        if not note.is_open:", "        if note.is_open:"),
        arena="poison",
    ),
    mutant(
        "no note is written before a call",
        "H9",
        (NOTES, "CallKind.RECORDS or self.is_suspect(lease_key)", "CallKind.RECORDS"),
        arena="poison",
    ),
    mutant(
        "after a call that timed out another one begins",
        "H21",
        (DISPATCH, "        self._is_over = True\n", ""),
        test="tests/engine/worker_side/test_deaths.py::"
        "test_an_outage_charges_only_calls_that_were_made",
    ),
    mutant(
        "a call that is noted has others beside it",
        "H21",
        (DISPATCH, "if self._is_over or self._has_noted or", "if self._is_over or"),
        test="tests/engine/worker_side/test_deaths.py::"
        "test_who_kills_beside_a_call_that_is_noted_is_charged_itself",
    ),
    mutant(
        "a shard is a suspect until the turn ends",
        "H21",
        (NOTES, "self._acquitted.add(lease_key)", "del lease_key"),
        test="tests/engine/worker_side/test_deaths.py::"
        "test_who_is_acquitted_is_handled_beside_others_and_noted_no_more",
    ),
    mutant(
        "a call without records that kills is noted until its shard is no suspect",
        "H21",
        (NOTES, "kind is not CallKind.RECORDS or self.is", "self.is"),
        test="tests/engine/worker_side/test_deaths.py::"
        "test_what_goes_wrong_is_found_and_its_neighbours_go_on[stopping-kills-stop-stopped]",
    ),
    mutant(
        "a record is taken for guilty before it is known",
        "H9",
        ("domain/delivery/attempts.py", "charge.first == charge.last ==", "charge.first =="),
        arena="one death is enough",
    ),
    mutant(
        "a turn does not wait for its tasks",
        "H10, §8 row 25",
        (
            "engine/worker/tasks.py",
            "            await hard.unless(self._quiet)\n",
            "            pass\n",
        ),
    ),
    mutant(
        "a call begins whatever time is left",
        "H10",
        (
            DISPATCH,
            "self._clock.monotonic_ms() + self._timeout_ms > self._calls_end_ms\n",
            "self._timeout_ms > self._calls_end_ms\n",
        ),
        why_not=(
            "a second line: the turn stops, and with it every wait for a call, at the moment from "
            "which on no call has its time-out left"
        ),
    ),
    mutant(
        "a stream that was created again is read on",
        "H12",
        (STATE, "and known != found:\n", "and known.created_ms > found.created_ms:\n"),
        arena="created again",
    ),
    mutant(
        "a shard ends because one call says that it is gone",
        "H12",
        (
            GONE,
            "return _waits(replace(note, unlisted_ms=0), ListedStill())",
            "return _over(note, graph, MissedForRetention())",
        ),
        arena="false news",
    ),
    mutant(
        "a shard ends because one listing of a moment ago lacks it",
        "H12",
        (
            GONE,
            "return _waits(seen, SecondListingAwaited())",
            "return _over(seen, graph, MissedForRetention())",
        ),
        arena="false and old news",
    ),
    mutant(
        "two managers run turns at once",
        "H13",
        (STATE, "            if held:\n                return None\n", ""),
    ),
    mutant(
        "children are not taken over",
        "H13",
        (
            "engine/worker/shards.py",
            "                await self._patience.persist(partial(self._take, children), hard)\n",
            "",
        ),
        arena="rare managers",
    ),
    mutant(
        "the manager turns for ever",
        "H14",
        ("engine/manager/loop.py", "stays = awake is not False", "stays = True"),
        arena="asleep",
    ),
    mutant(
        "a checkpoint does not count as a renewal",
        "H14",
        (
            WRITER,
            "                held.confirmed = sent\n",
            '                held.confirmed = sent if change.operation == "renew" else held.confirmed\n',
        ),
        arena="busy",
    ),
    mutant(
        "no skew between two managers' clocks is allowed for",
        "H15",
        (
            LOSSES,
            "self._skew_ms - self._behind_ms()\n",
            "-self._behind_ms()\n",
        ),
        arena="changing managers",
    ),
    mutant(
        "first seen is the time before the reading",
        "H15",
        (
            EXPIRY,
            "Sighting(counter, owner, read_finished_ms, is_known)",
            "Sighting(counter, owner, read_started_ms, is_known)",
        ),
        arena="frozen scans",
    ),
    mutant(
        "local expiry trusts the clock that may stand still",
        "H15",
        (
            WRITER,
            "return max(now.monotonic_ms - confirmed.monotonic_ms, now.wall_ms - confirmed.wall_ms)",
            "return now.monotonic_ms - confirmed.monotonic_ms",
        ),
        arena="pauses",
    ),
    mutant(
        "user code is imported before leases are adopted",
        "H16",
        (
            WORKER,
            "            await self._patience.persist(self._watch.adopt_all, self._stopping)\n",
            (
                "            await self._ports.handler.load()\n"
                "            await self._patience.persist(self._watch.adopt_all, self._stopping)\n"
            ),
        ),
        arena="long imports",
    ),
    mutant(
        "nothing is written before leaving",
        "H16, §8 row 25",
        (WORKER, "        await checkpointer.renew_before_leaving(stopped_ms, self._hard)\n", ""),
        arena="busy",
    ),
    mutant(
        "records are handed over after a stall without a renewal",
        "H17",
        (POINTER, "return self._writer.age_ms(held) <= self._renew_ms", "return held.is_held"),
        arena="pauses",
    ),
    mutant(
        "the shard that asks first goes first",
        "H17",
        (
            DISPATCH,
            "round=max(self._round, self._rounds_served.get(key, -1) + 1) + ahead,",
            "round=0,",
        ),
        arena="one at a time",
    ),
    mutant(
        "a heartbeat tells no lag",
        "H18",
        (
            "engine/worker/watch.py",
            "still_ms=still_ms) for h in held}",
            "still_ms=still_ms) for h in ()}",
        ),
        arena="perfect",
    ),
    mutant(
        "a worker deletes what it gives back",
        "H19",
        (POINTER, "    return evict(held.lease)\n", "    return delete(held.lease)\n"),
        (POINTER, "    checkpoint,\n    create,\n", "    checkpoint,\n    create,\n    delete,\n"),
        arena="paused",
    ),
    mutant(
        "a lease that waits for another parent of its merge takes a place",
        "§4.6 step 2",
        (
            "domain/turn.py",
            "idle=waiting_for_a_merge(graph, [*leases, *unreadable.stand_ins]),",
            "idle=waiting_for_a_merge((), leases),",
        ),
        arena="a place per open shard",
    ),
)
