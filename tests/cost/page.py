"""
The tables of docs/cost.md, made by the model: `python -m tests.cost.page` writes them anew.

A table is known by its first row. What a sentence of README or docs says in dollars is one of
:func:`figures`.
"""

import math
import re
from pathlib import Path

from shardfleet.config import FleetConfig
from shardfleet.domain.cost.prices import PRICES
from shardfleet_ops.cost.model import (
    Setup,
    StreamMode,
    fargate_per_month,
    mapping_per_month,
    per_month,
    spark_per_month,
    stream_per_month,
    window_per_month,
)
from tests.cost.fleets import FLEETS, OF_TWO_PROCESSES, WATCH

PAGE = Path(__file__).parents[2] / "docs/cost.md"
BUSY = (0.02, 0.05, 0.2, 0.5, 1.0)
README = Path(__file__).parents[2] / "README.md"
SMALL_MB = 256
CONFIG = FleetConfig(fleet="f", stream_arn="a", lease_table="l", state_table="s", max_workers=1_000)


def beside_mapping(shards, *, busy, at_once):
    """Return dollars a shard: of a plain handler a worker has one call at a time."""
    workers = max(math.ceil(shards / 8), math.ceil(shards * busy / at_once))
    setup = Setup(shards=shards, workers=workers, worker_mb=SMALL_MB, **WATCH)
    return per_month(CONFIG, setup).total / shards


def beside_java(shards, *, cpu, memory_gb):
    """Return the dollars of two tasks of the KCL, and of a lease table as a fleet's."""
    setup = Setup(shards=shards, worker_mb=SMALL_MB)
    table = per_month(CONFIG, setup).by_item["dynamodb"]
    return fargate_per_month(2, cpu=cpu, memory_gb=memory_gb) + table


def money(dollars):
    """Return an amount as the page has it."""
    return f"{dollars:,.2f}"


def tables():
    """Return the page's tables, each as rows of cells, its head first."""
    items = list(FLEETS[0].costs.by_item)
    shown = [item for item in items if item not in ("logs", "scheduler", "storage")]
    yield [
        ["fleet", *(f"`{item}`" for item in shown), "the rest", "a month"],
        *(
            [
                fleet.name,
                *(money(fleet.costs.by_item[item]) for item in shown),
                money(sum(fleet.costs.by_item[item] for item in items if item not in shown)),
                f"${money(fleet.costs.total)}",
            ]
            for fleet in FLEETS
        ),
    ]
    yield beside_a_mapping()
    yield beside_the_kcl()
    yield [
        ["stream of 8 shards, 4 MB/s read", "a month"],
        *(
            [words, money(stream_per_month(8, mode=mode, gb_out=4e-3 * 2_628_000))]
            for mode, words in {
                StreamMode.PROVISIONED: "provisioned",
                StreamMode.ON_DEMAND: "on demand",
                StreamMode.ADVANTAGE: "on demand, Advantage",
            }.items()
        ),
    ]


def beside_a_mapping():
    """Return the table of busy handlers, dollars a shard."""
    return [
        [
            "busy",
            "mapping",
            *(f"{n} shards, {how}" for n in (8, 800) for how in ("plain", "async")),
        ],
        *(
            [
                f"{busy:.0%}".replace("%", " %"),
                money(mapping_per_month(1, busy=busy, handler_mb=SMALL_MB)),
                *(
                    money(beside_mapping(shards, busy=busy, at_once=at_once))
                    for shards in (8, 800)
                    for at_once in (1, 8)
                ),
            ]
            for busy in BUSY
        ),
    ]


def beside_the_kcl():
    """Return the table of whole consumers, dollars."""
    return [
        ["shards", "KCL on Fargate", "fleet"],
        *(
            [
                str(shards),
                money(beside_java(shards, cpu=cpu, memory_gb=memory_gb)),
                money(per_month(CONFIG, Setup(shards=shards, worker_mb=SMALL_MB, **WATCH)).total),
            ]
            for shards, cpu, memory_gb in ((2, 0.25, 0.5), (8, 0.25, 0.5), (100, 2, 4))
        ),
    ]


def figures():
    """Return every amount that a sentence of README or docs may say, as it says it."""
    found = {cell for table in tables() for row in table for cell in row if cell.startswith("$")}
    config = FLEETS[0].fleet_config
    amounts = [
        stream_per_month(1),
        stream_per_month(4),
        window_per_month(config),
        PRICES.metric_month,
        PRICES.dashboard_month,
        spark_per_month(4, 16),
        spark_per_month(12, 48),
        per_month(config, Setup(shards=4, **WATCH)).total,
        OF_TWO_PROCESSES.costs.total,
    ]
    return found | {f"${money(each)}" for each in amounts}


def said_of(fleet):
    """Return the dollars a month that the page says of one of its fleets."""
    pattern = rf"^\| {re.escape(fleet.name)} \|.*\$([\d.,]+) \|$"
    row = re.search(pattern, PAGE.read_text("utf-8"), re.MULTILINE)
    return float(row[1].replace(",", ""))


def tables_of_readme():
    """Return the one that README has: a part of the page's."""
    (table,) = [table for table in tables() if table[0][0] == "busy"]
    return [[row[:4] for row in table]]


def written(page, made):
    """Return a page with these tables as they are now."""
    for table in made:
        head, *rows = ["| " + " | ".join(row) + " |" for row in table]
        line = "|" + "---|" * len(table[0])
        old = re.compile(rf"^{re.escape(head)}\n\|[-|]+\n(?:\|.*\n)*", re.MULTILINE)
        new = "\n".join([head, line, *rows]) + "\n"
        page, count = old.subn(lambda _, new=new: new, page)
        assert count == 1, head
    return page


if __name__ == "__main__":
    for file, made in ((PAGE, tables()), (README, tables_of_readme())):
        file.write_text(written(file.read_text("utf-8"), made), "utf-8")
