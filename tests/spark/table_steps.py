"""What a table does with rows, step by step: `… table_steps.py KIND FOLDER SETTINGS`, as JSON."""

import json
import sys

from pyspark.sql import SparkSession

from shardfleet_spark.tables.commits import Commit, put
from shardfleet_spark.tables.delta import DeltaTable
from shardfleet_spark.tables.iceberg import IcebergTable
from tests.spark.conftest import SETTINGS

KEYS = ("key",)
COLUMNS = "key string, value int, sequence_number string, sub_sequence_number bigint"
MORE = f"{COLUMNS}, more struct<a int, b array<struct<c int, d int>>>"
WIDER = f"{COLUMNS}, more struct<a int, b array<struct<c int, d int, e int>>>"
FIRST = [
    ("a", 1, "99", 0),
    ("a", 2, "100", 0),  # As text it is before 99.
    ("a", 3, "100", 1),
    (None, 4, "101", 0),
    (None, 5, "102", 0),
]
LATE = [("a", 6, "100", 0), ("b", 7, "3", 0), (None, 8, "102", 0)]


def rows_of(session, name, kind):
    found = session.read.format(kind).load(name).select("key", "value").collect()
    return sorted([row["key"] or "", row["value"]] for row in found)


def main(kind, folder, settings):
    session = (
        SparkSession.builder.master("local[2]")
        .config(map=SETTINGS | json.loads(settings))
        .getOrCreate()
    )

    def name(short):
        return f"{folder}/{short}" if kind == "delta" else f"lake.shop.{short}"

    def write(short, rows, number, *, keys=KEYS, columns=COLUMNS, query="q", options=None):
        """Write as a run that has just begun."""
        made = DeltaTable if kind == "delta" else IcebergTable
        table = made(name(short), options or {})
        commit = Commit(query, number, 1)
        put(table, session.createDataFrame(rows, columns), commit, keys=keys)
        return rows_of(session, name(short), kind)

    found = {
        "first": write("merged", FIRST, 0),
        "late": write("merged", LATE, 1),
        "the same batch with other rows": write("merged", [("c", 9, "9", 0)], 1),
        "the next batch": write("merged", [("c", 9, "9", 0)], 2),
        "appended": write("appended", FIRST[:2], 0, keys=()),
        "appended again": write("appended", FIRST[:2], 0, keys=()),
        "by another query": write("appended", FIRST[:1], 0, keys=(), query="other"),
    }
    for way, keys in (("merged", KEYS), ("appended", ())):
        short, change = f"grown_{way}", {"keys": keys, "options": {"mergeSchema": "true"}}
        write(short, FIRST[:1], 0, **change)
        write(short, [("z", 11, "201", 0, (8, [(9, 10)]))], 1, columns=MORE, **change)
        wider = [("x", 13, "203", 0, (8, [(9, 10, 11)]))]
        write(short, wider, 2, columns=WIDER, **change)
        write(short, [("y", 12, "5", 0)], 3, **change)
        rows = session.read.format(kind).load(name(short)).orderBy("value").select("key", "more")
        found[f"grown, {way}"] = [json.loads(each) for each in rows.toJSON().collect()]
    sys.stdout.write(f"\n{json.dumps(found)}\n")
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
