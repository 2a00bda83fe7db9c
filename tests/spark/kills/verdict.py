"""What came out of a run, against what went in."""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq

from tests.spark.kills.program import REPLAYS


@dataclass(frozen=True)
class Row:
    """A row of the file sink, and the batch that wrote it."""

    batch: int
    shard_id: str
    key: str
    number: int
    sequence_number: str = "0"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """
    What is wrong; all of it is 0 in a run that is right.

    Attributes:
        missing, duplicates, foreign: rows of the files, by record.
        out_of_order: rows of the files that come before an earlier record of their key.
        children_early: shards of which a row or a count came no later than one of a parent's.
        miscounted: shards whose last count is not the number of their rows.
        replays_differ: batches of counts that were not the same when they were run again.
        misplaced: leases of the query that publishes which do not say where it stands.

    """

    missing: int
    duplicates: int
    foreign: int
    out_of_order: int
    children_early: int
    miscounted: int
    replays_differ: int
    misplaced: int = 0

    @property
    def is_right(self):
        return not any(asdict(self).values())


def file_rows(folder):
    """Return the rows that the file sink's own log vouches for, in the order of its batches."""
    rows = []
    log = folder / "_spark_metadata"
    for path in sorted(log.glob("[0-9]*"), key=lambda path: int(path.name)):
        for line in path.read_text("utf-8").splitlines()[1:]:
            file = Path(unquote(urlsplit(json.loads(line)["path"]).path))
            rows += [
                Row(
                    int(path.name),
                    row["shard_id"],
                    row["partition_key"],
                    int(row["data"]),
                    row["sequence_number"],
                )
                for row in pq.read_table(file).to_pylist()
            ]
    return rows


def shard_counts(folder):
    """Return the table of counts after each batch, by batch."""
    return {int(path.stem): json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")}


def replays(folder):
    """Return how many batches of counts were run again, and how many came out different."""
    path = folder / REPLAYS
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return len(lines), sum(not line.endswith(" same") for line in lines)


def misplaced(leases, lineage, *, rows):
    """
    Return the leases that do not say where the query stands whose rows these are, all of them.

    Each with what it says (None: there is no such lease) and what it should.

    A finished one must have all its children, and every shard that nobody merged or split a
    lease at its last record; one without a record may stand at its beginning.
    """
    last = {}
    for row in rows:
        number = last.get(row.shard_id, "0")
        last[row.shard_id] = max(number, row.sequence_number, key=int)
    parents = {parent for each in lineage.values() for parent in each}
    wrong = {
        shard_id: (None, last.get(shard_id, "TRIM_HORIZON"))
        for shard_id in lineage
        if shard_id not in parents | set(leases)
    }
    for shard_id, lease in leases.items():
        where = lease.checkpoint.sequence_number
        ended = shard_id in parents
        stands = "SHARD_END" if ended else last.get(shard_id, "TRIM_HORIZON")
        if where != stands:
            wrong[shard_id] = where, stands
    return wrong


def judge(sent, lineage, *, rows, counts, replays_differ=0):
    """
    Compare.

    Args:
        sent: numbers put, by key, ascending.
        lineage: parents by shard.
        rows: of the file sink, in order.
        counts: table of counts by batch.
        replays_differ: see :class:`Verdict`.

    """
    put = {number for numbers in sent.values() for number in numbers}
    found = Counter(row.number for row in rows)
    last = counts[max(counts)] if counts else {}
    per_shard = Counter(row.shard_id for row in rows)
    return Verdict(
        missing=len(put - set(found)),
        duplicates=sum(count - 1 for count in found.values()),
        foreign=len(set(found) - put),
        out_of_order=_out_of_order(rows),
        children_early=len(_early_files(rows, lineage) | _early_counts(counts, lineage)),
        miscounted=sum(last.get(s, 0) != per_shard[s] for s in {*last, *per_shard}),
        replays_differ=replays_differ,
    )


def _out_of_order(rows):
    wrong, newest = 0, {}
    for row in rows:
        wrong += row.number < newest.get(row.key, -1)
        newest[row.key] = max(row.number, newest.get(row.key, -1))
    return wrong


def _early_files(rows, lineage):
    first, last = {}, {}
    for row in rows:
        first.setdefault(row.shard_id, row.batch)
        last[row.shard_id] = row.batch
    return {
        shard_id
        for shard_id, batch in first.items()
        if any(last.get(parent, -1) >= batch for parent in lineage[shard_id])
    }


def _early_counts(counts, lineage):
    """Return the shards that were counted before the count of a parent stood still."""
    early, final = set(), counts[max(counts)] if counts else {}
    for batch in sorted(counts):
        before = counts.get(batch - 1, {})
        for shard_id in set(counts[batch]) - set(before):
            parents = lineage[shard_id]
            if any(before.get(parent, 0) != final.get(parent, 0) for parent in parents):
                early.add(shard_id)
    return early


def event_figures(folder):
    """Return what Spark's event logs tell: task attempts, speculative ones, failures by reason."""
    figures = Counter()
    for path in folder.iterdir():
        for line in path.read_bytes().splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue  # The last line of a driver that was killed.
            if event["Event"] == "SparkListenerTaskStart":
                figures["attempts"] += 1
                figures["speculative_attempts"] += event["Task Info"]["Speculative"]
            elif event["Event"] == "SparkListenerTaskEnd":
                reason = event["Task End Reason"]["Reason"]
                if reason != "Success":
                    figures[f"ended by {reason}"] += 1
            elif event["Event"] == "SparkListenerExecutorRemoved":
                figures["executors_lost"] += 1
    return figures
