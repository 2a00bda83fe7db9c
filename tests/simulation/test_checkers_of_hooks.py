"""The checker of the hooks sees what breaks a handler object's life, and nothing else."""

import pytest
from msgspec.structs import replace

from shardfleet.domain.delivery.hooks import Hook
from shardfleet.domain.leases.changes import checkpoint, renew
from shardfleet.domain.stream.sequence import AT_SHARD_END
from shardfleet_testkit import checkers
from shardfleet_testkit.checkers import CallBegun
from tests.simulation.test_checkers_planted import KEY, ME, MINE, planted, writes

RECORDS, SHARD_END, RENEWED = "records", "SHARD_END", "renewed, finished by others"
STARTED, ENDED, LOST, STOPPING = Hook.STARTED, Hook.ENDED, Hook.LEASE_LOST, Hook.STOPPING

OVER = replace(MINE, checkpoint=AT_SHARD_END)


def lives(*steps):
    checker, found = planted(checkers.HooksTellALife)
    for number, step in enumerate(steps):
        name, failed = step if isinstance(step, tuple) else (step, False)
        if name == RECORDS:
            checker.call_begun(CallBegun(at_ms=number, by=ME, shard_id=KEY, has_hooks=True))
        elif name == SHARD_END:
            writes(checker, checkpoint(MINE, AT_SHARD_END), before=MINE, after=OVER)
        elif name == RENEWED:
            writes(checker, renew(OVER), before=OVER, after=OVER)
        else:
            checker.hook_told(number, ME, KEY, hook=name)
            checker.hook_over(ME, KEY, name, failed=failed)
    return [violation.text for violation in found]


@pytest.mark.parametrize(
    "steps",
    [
        (STARTED, RECORDS, RECORDS, ENDED, SHARD_END),
        (STARTED, STOPPING, STARTED, RECORDS, LOST),
        (STARTED, RECORDS),
        ((STARTED, True), STARTED, RECORDS, STOPPING),
        (STARTED, (ENDED, True), ENDED, SHARD_END),
        (STARTED, (ENDED, True), (STOPPING, True)),
        (STARTED, RECORDS, RENEWED, STOPPING),
    ],
)
def test_a_life_in_order_is_no_violation(steps):
    assert lives(*steps) == []


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ((RECORDS,), "not started, or is over"),
        (((STARTED, True), RECORDS), "not started, or is over"),
        ((STARTED, STOPPING, RECORDS), "not started, or is over"),
        ((STARTED, STARTED), "the object before is not over"),
        ((STARTED, STOPPING, LOST), "told lease_lost, but its object was not started"),
        ((STARTED, LOST, STOPPING), "told stopping, but its object was not started"),
        ((STARTED, ENDED, STOPPING), "told stopping, but its object was not started"),
        ((STARTED, (STOPPING, True), STOPPING), "told stopping, but its object was not started"),
        ((STARTED, RECORDS, SHARD_END), "SHARD_END before its object was told ended"),
        ((STARTED, (ENDED, True), SHARD_END), "SHARD_END before its object was told ended"),
    ],
)
def test_a_life_out_of_order_is_found(steps, text):
    (found,) = lives(*steps)
    assert text in found
