"""Tags of streams and consumers: a map per resource, at most 50 entries."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from shardfleet_local.kinesis.account import Account
from shardfleet_local.kinesis.errors import invalid_argument, validation
from shardfleet_local.kinesis.requests import (
    Request,
    text,
    text_list,
    text_of,
    whole_number,
)

Response = dict[str, Any]

MOST_TAGS: Final = 50  # fact K88
"""Tags per resource (API reference, AddTagsToStream)."""
LONGEST_KEY: Final = 128  # fact K88
"""Characters of a tag key (service model)."""
LONGEST_VALUE: Final = 256  # fact K88
"""Characters of a tag value (service model)."""


def tag_map(request: Request) -> dict[str, str]:
    """Return the request's Tags, checked."""
    tags = request.get("Tags")
    if not isinstance(tags, Mapping) or not tags:
        raise validation("Tags must be a map with at least one key.")  # fact K60
    for key, value in tags.items():
        if not isinstance(value, str) or len(value) > LONGEST_VALUE:
            raise validation(
                f"The value of tag {key!r} must be text of 0 to {LONGEST_VALUE}."
            )  # fact K88
        if not 1 <= len(key) <= LONGEST_KEY:
            raise validation(
                f"The tag key {key!r} must have 1 to {LONGEST_KEY} characters."
            )  # fact K88
    if len(tags) > MOST_TAGS:
        raise invalid_argument(f"A resource may have {MOST_TAGS} tags.")  # fact K88
    return dict(tags)


def _add(tags: dict[str, str], added: dict[str, str]) -> Response:
    if len(tags | added) > MOST_TAGS:
        raise invalid_argument(f"A resource may have {MOST_TAGS} tags.")  # fact K88
    tags.update(added)
    return {}


def _remove(tags: dict[str, str], keys: list[str]) -> Response:
    for key in keys:
        tags.pop(key, None)
    return {}


def _wire(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": tags[key]} for key in sorted(tags)]


def _resource_tags(account: Account, request: Request) -> dict[str, str]:
    arn = text(request, "ResourceARN")
    if "/consumer/" in arn:
        return account.consumer({"ConsumerARN": arn})[1].tags
    return account.stream_with_arn(arn).tags


def add_tags_to_stream(account: Account, request: Request) -> Response:
    """AddTagsToStream."""
    return _add(account.stream(request).tags, tag_map(request))


def remove_tags_from_stream(account: Account, request: Request) -> Response:
    """RemoveTagsFromStream; keys that are not there are ignored."""
    return _remove(account.stream(request).tags, text_list(request, "TagKeys", most=MOST_TAGS))


def list_tags_for_stream(account: Account, request: Request) -> Response:
    """ListTagsForStream, by key."""
    limit = whole_number(request, "Limit", least=1, most=MOST_TAGS, default=MOST_TAGS)
    start = text_of(request, "ExclusiveStartTagKey", most=LONGEST_KEY)
    tags = [each for each in _wire(account.stream(request).tags) if each["Key"] > start]
    return {"Tags": tags[:limit], "HasMoreTags": len(tags) > limit}


def tag_resource(account: Account, request: Request) -> Response:
    """TagResource, for streams and consumers."""
    return _add(_resource_tags(account, request), tag_map(request))


def untag_resource(account: Account, request: Request) -> Response:
    """UntagResource, for streams and consumers."""
    keys = text_list(request, "TagKeys", most=MOST_TAGS)
    return _remove(_resource_tags(account, request), keys)


def list_tags_for_resource(account: Account, request: Request) -> Response:
    """ListTagsForResource, for streams and consumers."""
    return {"Tags": _wire(_resource_tags(account, request))}


OPERATIONS: Final[Mapping[str, Callable[[Account, Request], Response]]] = {
    "AddTagsToStream": add_tags_to_stream,
    "RemoveTagsFromStream": remove_tags_from_stream,
    "ListTagsForStream": list_tags_for_stream,
    "TagResource": tag_resource,
    "UntagResource": untag_resource,
    "ListTagsForResource": list_tags_for_resource,
}
