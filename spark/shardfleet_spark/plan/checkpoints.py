"""
Where a query stands, from Spark's checkpoint folder and the seals (hazard H5).

Spark's commit log says which batch was the last one whose sink was done; the offset log has its
plan; the seals of that plan say what it read. ``commit`` of the data source says less: it lags one
batch. A batch that is in the offset log only may have reached the sink, and whoever goes on from
here reads its records again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from shardfleet.adapters.sdk_errors import SdkCall, pages
from shardfleet.domain.positions.positions import Positions
from shardfleet.errors import ConfigurationError
from shardfleet.foreign import read_bytes, read_json
from shardfleet_spark.offsets.lineage import Family, admit
from shardfleet_spark.offsets.plan_token import PlanToken, UnreadableCheckpoint, token_from_json
from shardfleet_spark.offsets.seals import SealStore, executed_seals
from shardfleet_spark.plan.planning import advance

# The log files of Spark 4.0 to 4.3; the second has a name for each source.
_VERSIONS = ("v1", "v2")


_LISTING = ("NextContinuationToken", "ContinuationToken")


class CheckpointFolder(Protocol):
    """A query's checkpoint location."""

    def names(self, log: str) -> Iterable[str]:
        """Return the names in a subfolder; none if there is no such folder."""

    def text(self, log: str, name: str) -> str:
        """Return a file of a subfolder."""


class LocalCheckpoint:
    """A checkpoint location on a file system of this machine."""

    def __init__(self, folder: Path) -> None:
        """Read nothing yet."""
        self._folder = folder

    def names(self, log: str) -> Iterable[str]:
        """Return the names in a subfolder; none if there is no such folder."""
        found = self._folder / log
        return [path.name for path in found.iterdir()] if found.is_dir() else []

    def text(self, log: str, name: str) -> str:
        """Return a file of a subfolder."""
        with (self._folder / log / name).open("rb") as opened:
            return str(read_bytes(opened), "utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """
    What Spark's logs say of one source.

    Attributes:
        committed: the plan of the last batch that is done; None before the first.
        batch: its number, -1 before the first.
        begun: the plan of a batch that is not known to be done, None if there is none.

    """

    committed: PlanToken | None
    batch: int
    begun: PlanToken | None


def read_logs(folder: CheckpointFolder, *, stream: str = "") -> Logged:
    """
    Read the last committed batch of a query.

    Args:
        folder: the query's checkpoint location.
        stream: name or ARN of the stream, where a query reads several.

    Raises:
        ConfigurationError: this is no checkpoint of such a query, or of several streams.
        UnreadableCheckpoint: its offset is none that this code understands.

    """
    offsets, commits = (_batches(folder, log) for log in ("offsets", "commits"))
    if not offsets:
        raise ConfigurationError(
            "there is no offset log in the checkpoint folder: give the query's "
            "checkpointLocation (with several queries below it, that of one query)"
        )
    last = max(commits, default=-1)
    later = [batch for batch in offsets if batch > last]
    return Logged(
        committed=_token(folder, last, stream) if last >= 0 else None,
        batch=last,
        begun=_token(folder, min(later), stream) if later else None,
    )


def standing_after(logged: Logged, seals: SealStore | None) -> Family:
    """
    Return where the shards stand after the last committed batch.

    Args:
        logged: what Spark's logs say.
        seals: the query's seal store, None if it has none.

    Raises:
        ConfigurationError: the query has a seal store, and none is given.
        UnreadableCheckpoint: the seals of that batch are not there.

    """
    token = logged.committed
    if token is None:
        begun = logged.begun
        assert begun is not None
        # Nothing is done; a plan says where each shard stands before it.
        return Family(begun.stands, begun.waiting)
    if token.sealed is not None:
        return admit(advance(token, dict(enumerate(token.sealed))).family, None, token.incarnation)
    if token.needs_store and seals is None:
        raise ConfigurationError(
            "the query has a seal store, which says what its last batch read: name it as in the "
            "query's option sealStore"
        )
    stored = seals.read_plan(token.sid, token.key) if seals is not None else {}
    found, is_whole = executed_seals(stored, seals=len(token.groups))
    if not is_whole:
        raise UnreadableCheckpoint(
            f"the seals of plan {token.number} are not in the seal store: name the store that the "
            "query uses"
        )
    return admit(advance(token, found).family, None, token.incarnation)


def positions_of(logged: Logged, family: Family, *, at_ms: int) -> Positions:
    """Return the document that hands these positions on."""
    token = logged.committed or logged.begun
    assert token is not None
    done = f"after batch {logged.batch}" if logged.committed else "before its first batch"
    return Positions(
        incarnation=token.incarnation,
        shards={shard_id: stand.position for shard_id, stand in family.stands.items()},
        waiting=dict(family.waiting),
        origin=f"Spark query spark:{token.sid} {done}",
        at_ms=at_ms,
    )


def _batches(folder: CheckpointFolder, log: str) -> list[int]:
    # Beside the batches there are checksums, and files that are being written.
    return sorted(int(name) for name in folder.names(log) if name.isdecimal())


def _token(folder: CheckpointFolder, batch: int, stream: str) -> PlanToken:
    try:
        text = folder.text("offsets", str(batch))
    except OSError as error:
        raise ConfigurationError(
            f"batch {batch} is in the commit log and not in the offset log: {error}"
        ) from error
    except ValueError as error:
        raise UnreadableCheckpoint(f"offset log of batch {batch}: {error}") from error
    version, _, rest = text.partition("\n")
    if version.strip() not in _VERSIONS:
        raise UnreadableCheckpoint(
            f"offset log of batch {batch}: version {version.strip()[:20]!r}, of which "
            f"{' and '.join(_VERSIONS)} are read: this Spark is newer than this shardfleet"
        )
    tokens = [token_from_json(found) for found in _ours(rest.splitlines()[1:])]
    fitting = [each for each in tokens if _names(each, stream)]
    if len(fitting) != 1:
        names = ", ".join(sorted(each.incarnation.stream_arn for each in tokens)) or "none"
        raise ConfigurationError(
            f"the query reads {len(fitting)} streams of that name by this source (in all: "
            f"{names}): name one of them with --stream"
        )
    return fitting[0]


def _names(token: PlanToken, stream: str) -> bool:
    arn = token.incarnation.stream_arn
    return not stream or stream in (arn, arn.rsplit("/", 1)[-1])


def _ours(lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """Yield what looks like an offset of this source, in a line or one level below it."""
    for line in lines:
        try:
            found = read_json(line)
        except ValueError:
            continue
        nested = found.values() if isinstance(found, dict) and "sid" not in found else ()
        for each in (found, *nested):
            value = _parsed(each)
            if isinstance(value, dict) and {"v", "sid", "n", "from"} <= set(value):
                yield value


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return read_json(value)
    except ValueError:
        return None


class _NotThere(ConfigurationError):
    """There is no such object."""


class S3Checkpoint:
    """
    A checkpoint location in a bucket.

    Args:
        client: of S3.
        bucket: its name.
        prefix: of the query's checkpoint location.

    """

    def __init__(self, client: Any, *, bucket: str, prefix: str) -> None:
        """Read nothing yet."""
        self._client = client
        self._bucket = bucket
        self._prefix = prefix.strip("/")

    def names(self, log: str) -> Iterable[str]:
        """Return the names below a prefix; none if there is nothing."""
        prefix = f"{self._prefix}/{log}/"
        call = self._call("ListObjectsV2", prefix)
        fetch = partial(call.run, self._client.list_objects_v2, Bucket=self._bucket, Prefix=prefix)
        return [
            call.whole(each)["Key"].rsplit("/", 1)[-1]
            for page in pages(fetch, _LISTING)
            for each in page.get("Contents", ())
        ]

    def text(self, log: str, name: str) -> str:
        """Return an object."""
        key = f"{self._prefix}/{log}/{name}"
        call = self._call("GetObject", key)
        try:
            found = call.run(self._client.get_object, Bucket=self._bucket, Key=key)
        except _NotThere as error:
            raise FileNotFoundError(key) from error
        return str(call.run(partial(read_bytes, found["Body"])), "utf-8")

    def _call(self, operation: str, what: str) -> SdkCall:
        codes = {"NoSuchKey": _NotThere, "NoSuchBucket": ConfigurationError}
        return SdkCall(f"{operation} of s3://{self._bucket}/{what}", codes=codes)
