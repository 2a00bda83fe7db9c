"""
A new index of an existing table cannot be read at once where the embedded AWS is unkind.

UpdateTable and CloudFormation are done before the index is: until then Query and Scan of it answer
`ValidationException: Cannot read from backfilling global secondary index` (D11,
aws-cloudformation/cloudformation-coverage-roadmap#1075).
"""

import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from ministack.core import responses
from ministack.services import dynamodb

from shardfleet.local.aws.patches import Patch
from shardfleet.local.aws.settings import ServerSettings

BACKFILL_S = 5.0  # ours: long enough to be met by whoever adds an index and asks at once
"""How long an index is built; on AWS minutes, or hours for large tables."""

Answer = tuple[int, Mapping[str, str], Any]


def _install(settings: ServerSettings) -> None:
    if settings.behaviour.unkind is None:
        return
    ready_s: dict[tuple[str, ...], float] = {}
    update, query, scan = dynamodb._update_table, dynamodb._query, dynamodb._scan

    def key(request: Mapping[str, Any], index: str) -> tuple[str, ...]:
        table = str(request.get("TableName")).rpartition("/")[2]
        return responses.get_account_id(), responses.get_region(), table, index

    def updated(request: Mapping[str, Any]) -> Answer:
        answer: Answer = update(request)
        for change in request.get("GlobalSecondaryIndexUpdates") or ():
            if answer[0] == HTTPStatus.OK and "Create" in change:
                index = change["Create"]["IndexName"]
                ready_s[key(request, index)] = time.monotonic() + BACKFILL_S
        return answer

    def readable(request: Mapping[str, Any]) -> bool:
        index = request.get("IndexName")
        return not index or time.monotonic() >= ready_s.get(key(request, index), 0.0)

    def refusal(request: Mapping[str, Any]) -> Answer:
        text = f"Cannot read from backfilling global secondary index: {request['IndexName']}"
        refused: Answer = responses.error_response_json("ValidationException", text, 400)
        return refused

    dynamodb._update_table = updated
    dynamodb._query = lambda request: query(request) if readable(request) else refusal(request)
    dynamodb._scan = lambda request: scan(request) if readable(request) else refusal(request)


PATCHES = (
    Patch(
        gap="A new index of an existing table can be read at once",
        touches=(
            "ministack.core.responses:error_response_json",
            "ministack.core.responses:get_account_id",
            "ministack.core.responses:get_region",
            "ministack.services.dynamodb:_query",
            "ministack.services.dynamodb:_scan",
            "ministack.services.dynamodb:_update_table",
        ),
        apply=_install,
    ),
)
"""What this module corrects in ministack."""
