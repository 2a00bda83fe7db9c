"""The demo's Spark half without Spark: what is compared, and how it is told."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from shardfleet.domain.delivery.record_ids import with_record_id
from shardfleet_local.rig.feed import InputRecord
from shardfleet_local.rig.outcome import result_of
from shardfleet_local.rig.report import spark_section
from shardfleet_local.rig.spark_part import (
    MicroBatch,
    SparkOutcome,
    archived_rows,
    differences,
    figures_of_input,
    figures_of_rows,
    integer_fields,
    micro_batch,
)
from tests.local.rig.builders import an_outcome


def records(*payloads):
    return [InputRecord(n, p.get("k", "a"), json.dumps(p).encode()) for n, p in enumerate(payloads)]


def test_only_fields_that_are_integers_everywhere_are_summed():
    found = integer_fields(
        records(
            {"a": 1, "b": 2, "c": True, "d": 2**63, "e f": 1, "g": 1.0},
            {"a": -1, "b": "x", "c": False, "d": 1, "e f": 1, "g": 2},
        )
    )

    assert found == ["a"]
    assert integer_fields([]) == []


def test_windows_of_a_key_add_up_to_the_figures_of_the_input():
    fed = records({"k": "a", "n": 5}, {"k": "b", "n": 1}, {"k": "a", "n": -2})
    rows = [
        {"key": "a", "count": 1, "sum_n": 5, "min_n": 5, "max_n": 5},
        {"key": "a", "count": 1, "sum_n": -2, "min_n": -2, "max_n": -2},
        {"key": "b", "count": 1, "sum_n": 1, "min_n": 1, "max_n": 1},
    ]

    wanted = figures_of_input(fed, ["n"])

    assert differences(wanted, figures_of_rows(rows, ["n"])) == []
    rows[0]["sum_n"] = 6
    assert (
        "1 keys have other figures in Spark: 'a'"
        in differences(wanted, figures_of_rows(rows, ["n"]))[0]
    )
    assert "1 keys did not come out" in differences(wanted, figures_of_rows(rows[:2], ["n"]))[0]
    assert "came out of Spark alone" in differences({}, figures_of_rows(rows, ["n"]))[0]


def test_of_an_id_the_record_with_the_greatest_number_counts(tmp_path):
    def row(record_id, count, sequence, sub):
        return {
            "data": with_record_id(record_id, json.dumps({"count": count}).encode()),
            "sequence_number": sequence,
            "sub_sequence_number": sub,
        }

    (tmp_path / "hour=01").mkdir()
    (tmp_path / "hour=02").mkdir()
    first = [row("a|1", 3, "100", 1), row("a|1", 2, "100", 0), row("b|1", 7, "5", 0)]
    pq.write_table(pa.Table.from_pylist(first), tmp_path / "hour=01/a.parquet")
    second = [row("a|1", 1, "99", 5), row("b|1", 8, "10", 0)]
    pq.write_table(pa.Table.from_pylist(second), tmp_path / "hour=02/b.parquet")

    assert sorted(each["count"] for each in archived_rows(tmp_path)) == [3, 8]


def test_sparks_report_of_a_batch_is_read():
    report = {
        "timestamp": "2026-11-21T06:00:01.500Z",
        "numInputRows": 40,
        "durationMs": {"triggerExecution": 700},
    }

    found = micro_batch(report)

    assert (found.rows, found.took_ms) == (40, 700)
    assert found.began_ms % 86_400_000 == 6 * 3_600_000 + 1_500


BATCHES = [MicroBatch(began_ms=n * 1_000, took_ms=900, rows=100) for n in range(3)]
GOOD = SparkOutcome(rows=300, keys=3, windows=9, fields=["n"], batches=BATCHES)


def test_the_report_shows_figures_and_a_chart_or_why_there_are_none():
    good = spark_section(GOOD)

    assert good.count("<svg") == 1
    assert "300 records" in good
    assert "to the last digit" in good
    assert "no Java &lt;17" in spark_section(SparkOutcome(skipped="no Java <17"))
    assert "other figures" in spark_section(SparkOutcome(wrong=["other figures"]))
    assert spark_section(None) == ""


def test_a_difference_fails_the_demo_and_a_skipped_spark_does_not():
    plain = an_outcome()

    wrong = replace(plain, spark=SparkOutcome(wrong=["2 keys have other figures"]))
    skipped = replace(plain, spark=SparkOutcome(skipped="no Java"))

    assert plain.passed
    assert skipped.passed
    assert not wrong.passed
    assert wrong.problems() == ["2 keys have other figures"]
    assert result_of(skipped)["spark"]["skipped"] == "no Java"
    assert result_of(replace(plain, spark=GOOD))["spark"]["micro_batches"] == 3
