"""
The figures in the pages, each of an entry point: made from `results/`, written by `make bench`.

A page says what a user's own way in costs, beside what a user would write instead, and nothing
that nobody has measured; `tests/test_benchmarks.py` looks for figures outside of these tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
_BLOCK = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
_HEAD = "| entry point | CPU time: another's through ours | result |\n|---|---|---|\n"
# Page -> result -> the entry point that it is of.
CONTESTS = {
    "docs/performance.md": {
        "cold_start_worker": "`worker_handler`, start to first batch",
        "live_pages": "`worker_handler`, pages of 20 records",
        "e2e_consumer_plain_1k_vs_boto3": "the same, full pages",
        "e2e_consumer_kpl_100b_vs_boto3": "the same, full of aggregates",
        "manager_looks": "`manager_handler`, a look at 10,000 leases",
    },
    "docs/producing.md": {
        "producer_100b_one": "`Producer.put`, one a call, 100 B",
        "producer_1k_one": "the same, 1 KiB",
        "producer_100b_blocking_one": "`BlockingProducer.put`, one a call, 100 B",
        "producer_1k_blocking_one": "the same, 1 KiB",
        "producer_100b_few": "`Producer.put`, 500 a call, 100 B",
        "producer_1k_few": "the same, 1 KiB",
    },
}
FIGURES = {
    "docs/performance.md": {
        "idle_worker": "`worker_handler`, 64 idle shards",
        "manager_turn": "`manager_handler`, a turn of them",
        "pushed_wait": "`FanOut()`, put to handler (median), beside polling",
        "first_record_local": "`shardfleet local run`, to the first record",
        "first_batch_in_spark": "a query of a fresh checkpoint, warm JVM, to its first batch",
        "spark_source_1k": "a streaming query, 1 KiB a row",
        "spark_source_10k": "the same, 10 KiB",
        "spark_micro_batch": "the same, 1, 10, 100, 1,000 shards with a record each",
    },
}
# What a row says of a result whose summary is too long for a page: what is looked for in it.
_SHORT = {
    "idle_worker": r"[\d.]+ CPU seconds per idle shard-hour",
    "manager_turn": r"[\d.]+ s(?= \()",
    "pushed_wait": r"[\d.]+ ms(?= \(median)|[\d.]+ ms(?= and [\d.]+ ms polled)",
    "first_record_local": r"^[\d.]+ s",
    "first_batch_in_spark": r"^[\d.]+ s|naive tuples [\d.]+ s",
    "spark_source_1k": r"[\d.]+ x Parquet(?=,)",
    "spark_source_10k": r"[\d.]+ x Parquet(?=,)|peak [\d,]+ MiB a worker, [\d,]+ MiB the planner",
    "spark_micro_batch": r"[\d.]+, [\d.]+, [\d.]+, [\d.]+ x Parquet",
}


def page_with_figures(page: str, text: str, results: Mapping[str, dict[str, Any]]) -> str:
    """
    Return a page's text with its table made anew.

    Args:
        page: from the project's folder, e.g. ``docs/performance.md``.
        text: of the page as it is; the table stands between :data:`BEGIN` and :data:`END`.
        results: by name, as ``results/`` has them.

    Raises:
        KeyError: a result that the page shows was never measured.

    """
    lines = [_HEAD]
    for name, entry_point in CONTESTS[page].items():
        found = results[name]
        low, high = found["ratio_between"]
        times = f"{found['ratio']:.2f} ({low:.2f}-{high:.2f}), {found['peer']}"
        lines.append(f"| {entry_point} | {times} | `{name}` |\n")
    for name, entry_point in FIGURES.get(page, {}).items():
        parts = re.findall(_SHORT[name], results[name]["summary"])
        assert parts, f"{name}: its summary says nothing of {_SHORT[name]}"
        lines.append(f"| {entry_point} | {', '.join(parts)} | `{name}` |\n")
    block = f"{BEGIN}\n{''.join(lines)}{END}"
    return _BLOCK.sub(lambda _: block, text)
