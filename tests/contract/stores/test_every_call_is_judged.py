"""
Nothing is asked of DynamoDB, and nothing conditional of S3, that the contract does not judge.

The calls are looked up in the product's source, so a new one without a test of its own fails here.
"""

import ast
import inspect
from pathlib import Path

import pytest

from shardfleet.domain.leases import changes
from shardfleet.domain.leases.lease import LeaseChange
from tests.adapters.lease_strategies import OPERATIONS
from tests.contract.stores.test_lease_store_contract import ON_NOTHING, ONE_TERM_FALSE
from tests.facts.table import operations_by_method

ROOT = Path(__file__).resolve().parents[3]
# The embedded AWS answers such calls; the test kit and the package of CDK make none.
PRODUCT = [
    path
    for folder in ("layer/python/shardfleet", "functions", "spark", "tools/shardfleet_ops")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
# Test, and the calls whose judges would notice there that they answer otherwise than we think.
JUDGES = {
    "test_each_term_of_each_condition_alone_refuses_the_write": (
        "DynamoDBLeaseStore.__init__ put_item",
        "DynamoDBLeaseStore.__init__ update_item",
        "DynamoDBLeaseStore.__init__ delete_item",
    ),
    "test_a_scan_returns_more_than_a_page_holds": ("DynamoDBLeaseStore.survey scan",),
    "test_any_operation_on_any_lease_is_what_the_reference_says": (
        "DynamoDBLeaseStore.get get_item",
    ),
    "test_the_index_finds_leases_by_owner_and_during_a_handover_by_the_next_owner": (
        "DynamoDBLeaseStore.keys_owned_by query",
    ),
    "test_a_lease_table_is_made_once_as_the_kcl_makes_it": (
        "_ensure create_table",
        "has_table describe_table",
        "_Examination._table describe_table",
    ),
    "test_a_state_table_is_made_once_and_expires_what_says_so": (
        "ensure_state_table update_time_to_live",
    ),
    "test_a_body_comes_back_as_it_was": ("DynamoDBStateStore.read get_item",),
    "test_more_documents_than_a_page_holds_are_all_listed": ("DynamoDBStateStore.list query",),
    "test_documents_of_all_kinds_are_read_page_by_page": ("DynamoDBStateStore.page scan",),
    "test_a_write_from_any_other_version_is_a_conflict_that_shows_the_document": (
        "DynamoDBStateStore._update update_item",
    ),
    "test_a_document_is_deleted_only_at_the_expected_version": (
        "DynamoDBStateStore.delete delete_item",
    ),
    "test_the_first_writer_wins_and_the_next_is_told_what_stands": (
        "DynamoDBSealStore.get get_item",
    ),
    "test_of_many_writers_at_once_exactly_one_wins": (
        "DynamoDBSealStore.put_if_absent put_item",
        "S3SealStore.put_if_absent put_object",
    ),
    "test_until_3_4_rows_have_a_table_of_their_own": (
        "DynamoDBKcl3Store._own_rows scan",
        "DynamoDBKcl3Store._item get_item",
        "DynamoDBKcl3Store.write update_item",
        "DynamoDBKcl3Store.delete delete_item",
    ),
    "test_the_index_is_made_as_a_kcl_3_makes_it": (
        "DynamoDBOwnerIndex.make update_table",
        "DynamoDBOwnerIndex._described describe_table",
    ),
    "test_whether_leases_may_be_written_is_asked_without_writing": (
        "DynamoDBOwnerIndex.refusal update_item",
    ),
    "test_a_scan_is_read_in_pages": ("_Examination._neighbours scan",),
    "test_many_seals_are_deleted": ("DynamoDBSealStore.delete batch_write_item",),
    "test_a_plan_larger_than_a_page_is_read_whole": ("DynamoDBSealStore.read_plan query",),
}
# An object that only a repeat replaces: no condition, and nothing of a table.
UNCONDITIONAL = {"S3DeadLetters.record put_object", "S3WindowStates.keep put_object"}


def calls():
    """Return "Class.function operation" of each call of a client, and of each of its paginators."""
    # Of S3, the one conditional operation that we use.
    known, found = {*operations_by_method(("dynamodb",)), "put_object"}, set()
    for path in PRODUCT:
        for function, name in functions_of(ast.parse(path.read_text("utf-8"))):
            for node in ast.walk(function):
                match node:
                    case ast.Attribute(value=client, attr=operation):
                        pass
                    case ast.Call(
                        func=ast.Attribute(value=client, attr="get_paginator"),
                        args=[ast.Constant(value=operation)],
                    ):
                        pass
                    case _:
                        continue
                if operation in known and is_client(client):
                    found.add(f"{name} {operation}")
    return found


def functions_of(tree, inside=""):
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node, inside + node.name
        elif isinstance(node, ast.ClassDef):
            yield from functions_of(node, f"{inside}{node.name}.")


def is_client(value):
    """Clients are held in names that say so."""
    value = value.func if isinstance(value, ast.Call) else value
    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    return name.strip("_").endswith(("client", "dynamodb", "table_reads", "table_writes"))


def test_every_call_has_a_test_that_judges_it():
    assert calls() - UNCONDITIONAL == {call for judged in JUDGES.values() for call in judged}


@pytest.mark.parametrize("test", JUDGES)
def test_the_test_is_there(test):
    files = Path(__file__).parent.glob("test_*_contract.py")
    assert any(f"\ndef {test}(" in file.read_text("utf-8") for file in files)


def test_every_change_of_a_lease_is_judged_term_by_term_and_on_nothing():
    public = {
        name
        for name, function in inspect.getmembers(changes, inspect.isfunction)
        if not name.startswith("_")
        and inspect.signature(function).return_annotation == LeaseChange.__name__
    }
    assert set(OPERATIONS) == public
    term_by_term = {each[0].operation for each in ONE_TERM_FALSE.values()}
    on_nothing = {each.operation for each in ON_NOTHING.values()}
    # These ask for existence alone, which ON_NOTHING takes away; a create asks for its contrary.
    assert term_by_term == public - {"set_children", "set_hash_range"}
    assert on_nothing == public - {"create"}
