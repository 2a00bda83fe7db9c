"""Of everything that a stack of ours has, a list is asked, or it is a part of what is listed."""

import json
from pathlib import Path

import boto3
import pytest

from shardfleet_local.acceptance.deployment import KINDS, LISTED, PARTS

SNAPSHOTS = Path(__file__).resolve().parents[2] / "cdk/snapshots"


def types_of(template):
    """Return the types of AWS's resources that are named anywhere in a document."""
    if isinstance(template, dict):
        own = {template["Type"]} if str(template.get("Type", "")).startswith("AWS::") else set()
        return own.union(*(types_of(each) for each in template.values()))
    if isinstance(template, list):
        return set().union(*(types_of(each) for each in template))
    return set()


def test_every_type_of_our_templates_is_listed_or_part_of_what_is():
    smallest, largest = (
        types_of(json.loads((SNAPSHOTS / name).read_text("utf-8")))
        for name in ("minimum.json", "everything.json")
    )
    monitoring = {each for each in largest if each.startswith("AWS::CloudWatch::")}
    parameters = {each for each in smallest if each.startswith("AWS::SSM::Parameter::Value")}
    assert "AWS::Kinesis::Stream" in smallest
    assert len(monitoring) == 3

    assert (smallest | monitoring) - parameters <= LISTED | PARTS


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.service}-{kind.operation}")
def test_every_list_is_an_operation_of_its_service(kind):
    client = boto3.client(
        kind.service,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )

    assert hasattr(client, kind.operation)
    # Whatever is not paged by the SDK gives all of it in one answer.
    assert client.can_paginate(kind.operation)
