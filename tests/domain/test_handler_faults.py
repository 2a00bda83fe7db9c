"""What the doctor says of a handler: while a call runs, and of the error that stopped a shard."""

import pytest
from msgspec.structs import replace

from shardfleet.domain.slots.usage import HandlerSigns, ShardWay
from shardfleet_ops.explain.doctor import Severity, diagnose
from shardfleet_ops.explain.fleet_view import failures
from tests.domain.builders import a_failing_slot, a_lease
from tests.domain.test_diagnosis import HEALTHY, NOW_MS, READING, STOPPED


def test_what_a_handler_does_wrong_while_it_works_is_a_warning():
    signs = HandlerSigns(calls_ms={"1": NOW_MS - 50_000}, remarks=("it prints: print less",))
    slot = replace(a_failing_slot(), failure=None, heartbeat_ms=NOW_MS, turn_open=True, signs=signs)
    found = diagnose(replace(HEALTHY, reading=replace(READING, slots=[slot])))

    assert [(each.severity, each.code) for each in found] == [
        (Severity.WARNING, "handler-slow"),
        (Severity.WARNING, "handler-remark"),
    ]
    assert "1: a call of the handler has been running for 50 s; at handler_timeout_ms (60000)" in (
        found[0].found
    )
    assert found[1].found == "s1: it prints: print less"


def test_a_shard_that_is_polled_though_it_could_be_pushed_is_a_warning_with_the_reason():
    ways = {"1": ShardWay(polled="there is a proxy between"), "2": ShardWay(gap_ms=60_000)}
    slot = replace(a_failing_slot(), failure=None, heartbeat_ms=NOW_MS)
    slot = replace(slot, signs=HandlerSigns(ways=ways))
    leases = [a_lease(f"{number} at 5 by {slot.worker_id}") for number in (1, 2)]
    (found,) = diagnose(replace(HEALTHY, reading=replace(READING, slots=[slot], leases=leases)))

    assert (found.severity, found.code) == (Severity.WARNING, "polled-for-now")
    assert found.found == (
        "1 is polled for now, for it could not be pushed: there is a proxy between"
    )


@pytest.mark.parametrize(
    ("error", "cure"),
    [
        ("ClientError AccessDeniedException of PutItem (a.py:3 in f)", "grant the worker's role"),
        (
            "AuthorizationErrorException AuthorizationError of CreateTopic (a.py:3 in f)",
            "grant the",
        ),
        (
            "ClientError UnauthorizedOperation of RunInstances (a.py:3 in f)",
            "grant the worker's role",
        ),
        (
            "KeyError (a.py:3 in f), from ClientError AccessDenied of GetObject",
            "grant the worker's",
        ),
        ("ClientError InvalidClientTokenId of GetCallerIdentity (a.py:3 in f)", "without keys"),
        ("ExpiredTokenException ExpiredTokenException of GetItem (a.py:3 in f)", "without keys"),
        ("NoCredentialsError (a.py:3 in f)", "without keys"),
        ("UnknownServiceError (a.py:3 in f)", "name a service"),
        ("ClientError InvalidParameterValue of SendMessage (a.py:3 in f)", "mend the request"),
        ("OSError (a.py:3 in f), from ClientError Throttling of PutItem", "raise what it may take"),
        ("NoSuchBucket of GetObject (a.py:3 in f)", "name what is there"),
        ("JSONDecodeError (a.py:3 in f)", "the payload is not what that line expects"),
        ("ModuleNotFoundError (a.py:3 in f)", "requirements.txt"),
        ("Mine (a.py:3 in f)", "look at that line with the record at that position"),
    ],
)
def test_a_stopped_shards_finding_says_what_to_do_about_such_an_error(error, cure):
    stop = replace(STOPPED.stops["1"], error=error)
    (found,) = diagnose(replace(HEALTHY, reading=replace(STOPPED, stops={"1": stop})))

    assert cure in found.remedy.partition(". An error is told")[0]
    assert "then: shardfleet resume 1" in found.remedy


@pytest.mark.parametrize(
    ("message", "cure"),
    [
        ("importing orders failed with AccessDenied: An error occurred", "grant the worker's role"),
        ("importing orders failed with KeyError: 'AccessDenied'", "mend that line"),
        ("there is no module 'AccessDenied'", "mend that line"),
    ],
)
def test_what_a_module_is_refused_while_it_is_imported_is_granted(message, cure):
    (row,) = failures([a_failing_slot(message=message)], now_ms=NOW_MS)

    assert cure in row.remedy
