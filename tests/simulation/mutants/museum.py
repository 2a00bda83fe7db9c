"""Mutants that put the bugs of others back: protocol.md §8 of the design, and the museum."""

from __future__ import annotations

from tests.simulation.mutants.mutant import mutant

DELIVERY, CURSOR, ENDING = (
    "engine/shard/delivery.py",
    "domain/reading/cursor.py",
    "engine/shard/end.py",
)
CONSUMER, WRITER, POINTER = (
    "engine/shard/consumer.py",
    "engine/ownership/writer.py",
    "engine/ownership/checkpointer.py",
)
WORK, ASSIGNMENT, CLEANUP = (
    "engine/worker/shards.py",
    "domain/balance/by_count.py",
    "domain/leases/cleanup.py",
)
SYNC, STATE, DEAGGREGATE = (
    "domain/leases/sync.py",
    "engine/state/fleet_state.py",
    "kpl/deaggregate.py",
)

_WORKER_TESTS, _MANAGER_TESTS = "tests/engine/worker_side", "tests/engine/manager_side"
_BELIEVED = 'def _believed(*_: object, **__: object) -> str:\n    return ""\n\n\n'
_TIP_OF_NOW = (
    "domain/turn.py",
    "if snapshot.evidence and sync.begins_late else None",
    "if not snapshot.shards and snapshot.evidence else None",
)

MUSEUM = (
    mutant(
        "an exception skips the batch",
        "§8 row 1, KCL #10",
        (
            DELIVERY,
            "            await self._after_failure(batch, lane, done=done, error=result.error)\n",
            (
                "            await self._after_failure(batch, lane, done=0, error=result.error)\n"
                "            await lane.done(len(batch) - done, given_up=False)\n"
            ),
        ),
        arena="failures",
    ),
    mutant(
        "a batch that failed in part counts as done",
        "§8 row 1, KCL #10",
        (DELIVERY, "len(batch) if result.error is None else result.done_count", "len(batch)"),
        arena="failures",
    ),
    mutant(
        "a handler's reply is not looked at",
        "§8 row 1, KCL #10",
        (
            "runtime/handler_call.py",
            "failures = failures_of(reply)",
            "failures = failures_of(None)",
        ),
    ),
    mutant(
        "progress is told before the handler is done",
        "§8 row 2, fs2-aws #436",
        (
            DELIVERY,
            "        check_order(batch)\n",
            (
                "        check_order(batch)\n"
                "        self._held.note_progress(position_of(batch[-1]))\n"
            ),
        ),
    ),
    mutant(
        "an expired iterator begins at the last record again",
        "§8 row 3, KCL 2.4.5 #1014",
        (
            CURSOR,
            "StartingPosition(StartKind.AFTER_SEQUENCE_NUMBER, self.accepted)",
            "StartingPosition(StartKind.AT_SEQUENCE_NUMBER, self.accepted)",
        ),
    ),
    mutant(
        "an expired iterator begins where the lease did",
        "§8 row 3, KCL 1.8.8",
        (CURSOR, "        if self.accepted is None:\n", "        if self._shard_id:\n"),
    ),
    mutant(
        "a false shard end is believed",
        "§8 row 4, KCL #624",
        (CURSOR, "contradiction = end_contradiction(", "contradiction = _believed("),
        (CURSOR, "class ShardCursor:", _BELIEVED + "class ShardCursor:"),
        arena="contradictions",
    ),
    mutant(
        "the records of a false shard end count as read",
        "§8 row 4, protocol.md §4.5",
        (
            CURSOR,
            "            raise FalseEnd(contradiction)\n",
            (
                "            if page.records:\n"
                "                self.accepted = page.records[-1].sequence_number\n"
                "            raise FalseEnd(contradiction)\n"
            ),
        ),
        arena="contradictions",
        test="tests/domain/test_cursor.py::"
        "test_the_records_of_an_answer_that_contradicts_itself_count_as_not_read",
    ),
    mutant(
        "a shard ends without leases for its children",
        "§8 row 5, KCL #185, #837",
        (
            ENDING,
            "            await self._write(held, partial(checkpointer.create, lease))\n",
            "",
        ),
    ),
    mutant(
        "what was given back is never assigned again",
        "§8 row 5a, KCL #847",
        (
            ASSIGNMENT,
            "            else:\n                self.free.append(lease)\n",
            (
                "            elif lease.lease_owner is not None or not lease.lease_counter:\n"
                "                self.free.append(lease)\n"
            ),
        ),
    ),
    mutant(
        "a child waits for one of its parents only",
        "§8 row 6, KCL #1080",
        (
            POINTER,
            "for parent_id in lease.parent_shard_ids:",
            "for parent_id in lease.parent_shard_ids[:1]:",
        ),
        (
            ASSIGNMENT,
            "for parent in lease.parent_shard_ids)",
            "for parent in lease.parent_shard_ids[:1])",
        ),
        arena="laggards",
    ),
    mutant(
        "a child does not wait for its parents",
        "§8 row 6",
        (CONSUMER, "            if not waiting:\n                return\n", "            return\n"),
        (ASSIGNMENT, "elif blocking := self._unfinished_parents(lease):", "elif blocking := []:"),
        arena="laggards",
    ),
    mutant(
        "a merge does not wait for its other parent's lease",
        "§8 row 6, KCL #1080",
        (ENDING, "            await self._wait_for_other_parents(held, child)\n", ""),
        arena="merges of the unread",
    ),
    mutant(
        "children begin at LATEST",
        "§8 row 7, KCL #734",
        (
            SYNC,
            "sequence_number == AT_TIMESTAMP else AT_TRIM_HORIZON",
            "sequence_number == AT_TIMESTAMP else AT_LATEST",
        ),
        arena="laggards",
    ),
    mutant(
        "a hole is filled at LATEST",
        "§8 row 7, KCL #751",
        (
            SYNC,
            "return start_of_child(initial), HoleBesideSibling()",
            "return initial, HoleBesideSibling()",
        ),
        _TIP_OF_NOW,
        arena="holes",
    ),
    mutant(
        "what a first sync left out begins at the tip of now",
        "§4.3",
        _TIP_OF_NOW,
        test=f"{_MANAGER_TESTS}/test_hole_audit.py::"
        "test_children_of_what_the_first_turn_lost_begin_when_the_fleet_did_once_it_aged_out",
    ),
    mutant(
        "a listing in the middle of a reshard is believed",
        "§8 row 8, KCL #788",
        (SYNC, "    if graph.inconsistent:", "    if False:"),
        test="tests/domain/test_lease_creation_scenarios.py",
    ),
    mutant(
        "reads are not paced",
        "§8 row 8a, KCL #1062",
        (
            "domain/reading/pacing.py",
            "        self._wait_after(self._pace.call_ms, now_ms)\n",
            "        del now_ms\n",
        ),
    ),
    mutant(
        "the tip is another now each time",
        "§8 row 8b",
        (
            "engine/shard/start.py",
            "instant_ms=instant_ms)\n    if done.sequence_number == AT_TIMESTAMP",
            "instant_ms=clock.now_ms())\n    if done.sequence_number == AT_TIMESTAMP",
        ),
        arena="at the tip",
    ),
    mutant(
        "a lease is deleted because its shard is no longer listed",
        "§8 row 9, KCL #461, kcl-rust",
        (
            CLEANUP,
            "                kept.append((key, Unlisted()))\n",
            "                delete.append(LeaseAndWhy(lease, AgedOut()))\n",
        ),
        arena="short retention",
    ),
    mutant(
        "a lease is deleted while its parent's is there",
        "§8 row 9",
        (
            CLEANUP,
            "            if parent in self.leases:\n",
            "            if parent == lease.lease_key:\n",
        ),
        arena="rewound parents",
    ),
    mutant(
        "memory says checkpointed, the table does not",
        "§8 row 10, KCL #1354, #1788",
        (
            POINTER,
            "    if progress is not None:\n        return checkpoint(",
            (
                "    if progress is not None:\n"
                "        held.lease = replace(held.lease, checkpoint=progress)\n"
                "        return checkpoint("
            ),
        ),
        (
            POINTER,
            "from enum import StrEnum\n",
            "from dataclasses import replace\nfrom enum import StrEnum\n",
        ),
        arena="forgetful",
    ),
    mutant(
        "an own retried write is a lost lease",
        "§8 row 11, KCL #247",
        (
            WRITER,
            "if held.unsure and await self._was_mine(held, current):",
            "if not held.lease_key and await self._was_mine(held, current):",
        ),
        arena="lost answers",
    ),
    mutant(
        "renewal and checkpoint race",
        "§8 row 12, KCL #537, vmware-go-kcl #77",
        (
            WRITER,
            "        async with held.lock:\n            if not held.is_held:\n",
            "        async with type(held.lock)():\n            if not held.is_held:\n",
        ),
        arena="busy",
    ),
    mutant(
        "a steal goes by a stale counter",
        "§8 row 14, KCL #886",
        (
            "domain/balance/strategy.py",
            "return lease_changes.take(current, worker_id)",
            "return lease_changes.take(lease, worker_id)",
        ),
        why_not=(
            "it only wastes the steal: a counter that has moved since refuses it, and the next "
            "turn tries again"
        ),
    ),
    mutant(
        "a handover is never given back",
        "§8 row 15, KCL #1729, #1743, #1765",
        (WORK, "(held.in_handover or held.is_unwanted)", "held.is_unwanted"),
        (POINTER, "if h.in_handover and h.halt.is_set and not h.at_work]", "if not h.lease_key]"),
        arena="long handovers",
    ),
    mutant(
        "an old owner that restarted leaves its handover pending",
        "§8 row 15, KCL #1718",
        (
            POINTER,
            "if lease.checkpoint_owner == self.worker_id:",
            "if not lease.lease_key:",
        ),
        arena="restarted owners",
    ),
    mutant(
        "a shard that ends leaves its handover pending",
        "§8 row 15",
        (
            POINTER,
            "        if held.in_handover:\n            # The next",
            "        if not held.lease_key:\n            # The next",
        ),
        arena="hasty peers",
    ),
    mutant(
        "a dead manager is never replaced",
        "§8 row 17, KCL #1803",
        (STATE, "held = lock.until_ms > now_ms and lock", "held = lock"),
        arena="dead managers",
    ),
    mutant(
        "what looks like an aggregate and is none is dropped",
        "§8 row 20, kinesis-aggregation #11",
        (
            "engine/shard/deaggregation.py",
            "    if done is None:\n        return found.records\n",
            (
                "    if found.verdict is Verdict.BAD_DIGEST:\n        return ()\n"
                "    if done is None:\n        return found.records\n"
            ),
        ),
    ),
    mutant(
        "the rest of an aggregate is dropped at a checkpoint inside it",
        "§8 row 21",
        (DEAGGREGATE, "return found.records[done.sub_sequence_number + 1 :]", "return ()"),
        arena="kills",
    ),
    mutant(
        "sequence numbers are compared as text",
        "§8 row 22, kinesis-python",
        (
            "domain/stream/sequence.py",
            "number = int(self.sequence_number) if value is None else value",
            'number = int(self.sequence_number.ljust(60, "0")) if value is None else value',
        ),
        arena="kills",
    ),
    mutant(
        "a lease is not given to whoever has his share",
        "museum: zio-kinesis #1083",
        (
            ASSIGNMENT,
            "    roomy = [(load[w], w) for w in most if load[w] < most[w]]\n    heapify(roomy)\n",
            (
                "    share = max(1, sum(table.load.values()) // max(1, len(table.load)))\n"
                "    most = {w: min(n, share) for w, n in most.items()}\n"
                "    roomy = [(load[w], w) for w in most if load[w] < most[w]]\n    heapify(roomy)\n"
            ),
        ),
    ),
    mutant(
        "one lease is assigned per turn",
        "museum: vmware-go-kcl-v2 #14",
        (
            ASSIGNMENT,
            "    for lease in table.free:\n        if not roomy",
            "    for lease in table.free[:1]:\n        if not roomy",
        ),
        arena="many shards",
    ),
    mutant(
        "a lease is renewed whose consumer has left",
        "museum: lifion-kinesis #332",
        (
            WORK,
            "        del self._consumed[lease_key]\n",
            "        assert lease_key in self._consumed\n",
        ),
        arena="one worker",
    ),
    mutant(
        "a parent that has left the stream blocks its children",
        "museum: async-kinesis #69",
        (
            CURSOR,
            "End(verdict.children) if verdict.is_over else None",
            "None",
        ),
        arena="short retention",
    ),
    mutant(
        "no next iterator is taken for an expired one",
        "museum: async-kinesis #26",
        (
            CONSUMER,
            "            if page.resume_token is None:\n                return page.child_shards\n",
            "",
        ),
    ),
    mutant(
        "every record of an aggregate has the aggregate's key",
        "museum: KPL #439",
        (
            DEAGGREGATE,
            "Record(each, key, number, shard_id, arrival_ms, index, None, encryption, True)",
            'Record(each, "a", number, shard_id, arrival_ms, index, None, encryption, True)',
        ),
    ),
)
