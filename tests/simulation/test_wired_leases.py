"""The lease table behind the real adapter: it says what the domain says, over the wire."""

import dataclasses
import random

import pytest
from moto import mock_aws
from msgspec.structs import replace

from shardfleet.adapters.clients.aws_clients import AwsClients
from shardfleet.adapters.dynamodb import leases as adapter
from shardfleet.adapters.dynamodb.conditions import request_of
from shardfleet.adapters.dynamodb.wire import TableWire
from shardfleet.domain.leases import changes as change
from shardfleet.domain.leases.lease import ChangeKind, CheckpointNotPast, Lease
from shardfleet.domain.stream.sequence import (
    AT_LATEST,
    AT_SHARD_END,
    AT_TRIM_HORIZON,
    ExtendedSequenceNumber,
)
from shardfleet_testkit.simulation.campaign import Totals
from shardfleet_testkit.simulation.items import ItemTable, Refusal
from shardfleet_testkit.simulation.running import Options, run_seed
from shardfleet_testkit.simulation.wired_leases import item_of
from tests.adapters.tables import LIMITS, create_lease_table

# Behind what a worker has by default, and behind the SDK's client.
BY_DEFAULT, BY_SDK = 7, 47
# One in which leases are deleted, too.
DELETES = 147
WIRED = Options(seed=7, is_small=True, busy_s=40.0)


def test_fleets_whose_leases_are_behind_the_adapter_break_no_invariant():
    seeds = (BY_DEFAULT, BY_SDK, DELETES)
    results = [run_seed(dataclasses.replace(WIRED, seed=seed)) for seed in seeds]

    assert [str(violation) for result in results for violation in result.violations] == []
    kinds = {"DeleteItem", "GetItem", "PutItem", "Query", "Scan", "UpdateItem"}
    assert {kind for result in results for kind in result.requests} == kinds
    # Pages are cut short: more than one request for each call that reads many.
    calls, requests = results[0].calls, results[0].requests
    assert requests["Scan"] > calls["lease.scan"]
    assert not run_seed(dataclasses.replace(WIRED, seed=8, busy_s=5.0)).requests


def test_their_calls_are_counted_apart():
    totals = Totals()
    wired, plain = (run_seed(dataclasses.replace(WIRED, seed=seed, busy_s=5.0)) for seed in (7, 8))
    totals.add(wired, cpu_s=2.0)
    totals.add(plain, cpu_s=3.0)

    body = totals.body()
    assert (body["seeds"], body["cpu_s"]) == (2, 3.0)
    assert body["port_calls"] == sum(plain.calls.values())
    assert body["wired"] == {
        "seeds": 1,
        "cpu_s": 2.0,
        "port_calls": sum(wired.calls.values()),
        "requests_by_operation": wired.requests,
    }


def without_the_conditions(given, table):
    kept = given.conditions if given.kind is ChangeKind.PUT else ()
    return request_of(replace(given, conditions=kept), table)


def with_another_counter(given, table):
    return request_of(replace(given, adds=dict.fromkeys(given.adds, 2)), table)


@pytest.mark.parametrize("compiled", [without_the_conditions, with_another_counter])
def test_a_request_that_says_something_else_is_found(monkeypatch, compiled):
    monkeypatch.setattr(adapter, "request_of", compiled)

    found = [
        run_seed(dataclasses.replace(WIRED, seed=seed)).violations for seed in (BY_DEFAULT, BY_SDK)
    ]

    assert "WireSaysTheSame" in {each[0].checker for each in found if each}


@pytest.mark.parametrize(
    ("seed", "checker"), [(BY_DEFAULT, "WireSaysTheSame"), (BY_SDK, "NoRecordLost")]
)
def test_a_request_that_is_none_of_dynamodbs_is_found(monkeypatch, seed, checker):
    def with_a_word_too_many(given, table):
        return {**request_of(given, table), "Conditions": "none"}

    monkeypatch.setattr(adapter, "request_of", with_a_word_too_many)

    assert checker in {
        each.checker for each in run_seed(dataclasses.replace(WIRED, seed=seed)).violations
    }


def test_half_of_them_call_as_a_worker_does_by_default(monkeypatch):
    opened, once = [], TableWire._once

    def noted(*asked):
        opened.append(asked)
        return once(*asked)

    monkeypatch.setattr(TableWire, "_once", noted)

    for seed in (BY_SDK, BY_DEFAULT):
        assert not opened
        run_seed(dataclasses.replace(WIRED, seed=seed, busy_s=5.0))
    assert opened


def test_a_page_that_nobody_asks_for_is_found(monkeypatch):
    monkeypatch.setattr(adapter, "pages", lambda fetch, _paging: [fetch()])

    (violation,) = run_seed(WIRED).violations

    assert violation.checker == "WireSaysTheSame"


# --- the table itself, judged by another implementation of DynamoDB

POSITIONS = (
    AT_TRIM_HORIZON,
    AT_LATEST,
    AT_SHARD_END,
    *(ExtendedSequenceNumber(*given) for given in (("9",), ("10",), ("10", 3), ("11",))),
)


def drawn_lease(chance):
    return Lease(
        lease_key="shardId-1",
        checkpoint=chance.choice(POSITIONS),
        lease_counter=chance.randint(0, 2),
        lease_owner=chance.choice((None, "me", "she")),
        checkpoint_owner=chance.choice((None, None, "me")),
        owner_switches_since_checkpoint=chance.randint(0, 1),
        parent_shard_ids=chance.choice(((), ("shardId-0",))),
        throughput_kbps=chance.choice((None, 1.5)),
    )


def drawn_change(chance):
    seen = drawn_lease(chance)
    made = chance.choice(
        (
            change.create(seen),
            change.renew(seen),
            change.take(seen, "me"),
            change.assign(seen, "she"),
            change.evict(seen),
            change.set_children(seen, ("shardId-2", "shardId-3")),
            change.delete(seen),
        )
    )
    if chance.random() < 0.5:
        guard = CheckpointNotPast(chance.choice(POSITIONS))
        made = replace(made, conditions=(*made.conditions[:1], guard))
    return made


def answer_of_moto(client, operation, request):
    call = {"PUT": client.put_item, "UPDATE": client.update_item, "DELETE": client.delete_item}
    try:
        return call[operation](**request).get("Attributes"), None
    except client.exceptions.ConditionalCheckFailedException as error:
        return error.response.get("Item"), "ConditionalCheckFailedException"


def answer_of_ours(table, operation, request):
    names = {"PUT": "PutItem", "UPDATE": "UpdateItem", "DELETE": "DeleteItem"}
    try:
        return table.answer(names[operation], request).get("Attributes") or None, None
    except Refusal as refusal:
        return refusal.body.get("Item"), refusal.body["__type"].rpartition("#")[2]


def test_the_table_answers_lease_changes_as_moto_does(seed):
    chance = random.Random(seed)
    ours = ItemTable("leaseKey", page_items=lambda: 10)
    refused = 0
    with mock_aws():
        client = AwsClients(LIMITS).table_writes
        create_lease_table(client, "leases")
        for _ in range(60):
            ours.items.clear()
            client.delete_item(TableName="leases", Key={"leaseKey": {"S": "shardId-1"}})
            if chance.random() < 0.8:
                item = item_of(drawn_lease(chance))
                ours.items["shardId-1"] = item
                client.put_item(TableName="leases", Item=item)
            made = drawn_change(chance)
            request = request_of(made, "leases")
            expected = answer_of_moto(client, made.kind, request)
            assert answer_of_ours(ours, made.kind, request) == expected, made
            refused += expected[1] is not None
            kept = client.scan(TableName="leases")["Items"]
            assert list(ours.items.values()) == kept
    assert 10 < refused < 58
