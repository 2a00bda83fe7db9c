"""
A new index of an existing table is built for a while, if the embedded AWS is told to.

UpdateTable and CloudFormation are done before the index is: until then Query and Scan of it answer
`ValidationException: Cannot read from backfilling global secondary index` (D11,
aws-cloudformation/cloudformation-coverage-roadmap#1075), and DescribeTable says of it CREATING and
`Backfilling`, while the table itself is ACTIVE (developer guide, phases of index creation).
"""

import json
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from ministack.core import responses
from ministack.services import dynamodb

from shardfleet_local.aws.patches import Patch
from shardfleet_local.aws.settings import ServerSettings

Answer = tuple[int, Mapping[str, str], Any]


class _Building:
    """Which indexes are being built, and until when."""

    def __init__(self, built_s: float) -> None:
        self._built_s = built_s
        self._ready_s: dict[tuple[str, ...], float] = {}

    def begin(self, request: Mapping[str, Any]) -> None:
        for change in request.get("GlobalSecondaryIndexUpdates") or ():
            if "Create" in change:
                key = self._key(request, change["Create"]["IndexName"])
                self._ready_s[key] = time.monotonic() + self._built_s

    def is_built(self, request: Mapping[str, Any], index: str) -> bool:
        return time.monotonic() >= self._ready_s.get(self._key(request, index), 0.0)

    def described(self, request: Mapping[str, Any], answer: Answer) -> Answer:
        body = json.loads(answer[2])
        for index in body["Table"].get("GlobalSecondaryIndexes", ()):
            if not self.is_built(request, index["IndexName"]):
                index |= {"IndexStatus": "CREATING", "Backfilling": True}
        return answer[0], answer[1], json.dumps(body).encode()

    @staticmethod
    def _key(request: Mapping[str, Any], index: str) -> tuple[str, ...]:
        table = str(request.get("TableName")).rpartition("/")[2]
        return responses.get_account_id(), responses.get_region(), table, index


def _install(settings: ServerSettings) -> None:
    if not settings.behaviour.index_built_s:
        return
    building = _Building(settings.behaviour.index_built_s)
    update, describe = dynamodb._update_table, dynamodb._describe_table

    def updated(request: Mapping[str, Any]) -> Answer:
        answer: Answer = update(request)
        if answer[0] == HTTPStatus.OK:
            building.begin(request)
        return answer

    def described(request: Mapping[str, Any]) -> Answer:
        answer: Answer = describe(request)
        return building.described(request, answer) if answer[0] == HTTPStatus.OK else answer

    def read_by(operation: Callable[[Mapping[str, Any]], Answer]) -> Callable[..., Answer]:
        def read(request: Mapping[str, Any]) -> Answer:
            index = request.get("IndexName")
            if not index or building.is_built(request, index):
                return operation(request)
            text = f"Cannot read from backfilling global secondary index: {index}"
            refused: Answer = responses.error_response_json("ValidationException", text, 400)
            return refused

        return read

    dynamodb._update_table, dynamodb._describe_table = updated, described
    dynamodb._query, dynamodb._scan = read_by(dynamodb._query), read_by(dynamodb._scan)


PATCHES = (
    Patch(
        gap="A new index of an existing table can be read at once",
        touches=(
            "ministack.core.responses:error_response_json",
            "ministack.core.responses:get_account_id",
            "ministack.core.responses:get_region",
            "ministack.services.dynamodb:_describe_table",
            "ministack.services.dynamodb:_query",
            "ministack.services.dynamodb:_scan",
            "ministack.services.dynamodb:_update_table",
        ),
        apply=_install,
    ),
)
"""What this module corrects in ministack."""
