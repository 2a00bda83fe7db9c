"""
What does a page of a stream cost that keeps up: twenty records, just come?

A server in another process has the pages ready (`page_server.py`); leases, checkpoints, the slot
and the fleet's state are in the DynamoDB of the embedded AWS. Ours is a whole worker turn as Lambda
runs it, with the pace of reading let go; the peer the loop of boto3 that one writes first, which
stores its progress once a second, too. What they saw, in which order in each shard, is compared
first. CPU time of the consumer's process, from the first call to the last checkpoint.

The second and the third contest put a worker with four shards beside one that has as many records
in one shard, in small pages and in large ones.

    python benchmarks/bench_live_pages.py [--only NAME] [--rounds 15] [--folder DIR]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import side_by_side
from bench_e2e_consumer import OURS, Account, Consumer, process_environment
from consumers.protocol import Task
from page_server import Pages, serving
from side_by_side import Contest

from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.aws.settings import AwsBehaviour

ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/pages"
SMALL = Pages(shards=4, pages=500, records=20, record_bytes=250)
FULL = Pages(shards=4, pages=6, records=2_000, record_bytes=1_024)


def one_shard(pages: Pages) -> Pages:
    """Return as many pages in one shard."""
    return replace(pages, shards=1, pages=pages.pages * pages.shards)


def task_of(pages: Pages) -> Task:
    """Return what is asked of a consumer."""
    return Task(
        stream="pages",
        arn=ARN,
        shards=pages.shard_ids,
        records=pages.count,
        aggregated=False,
        lease_table="",
        state_table="",
        checkpoint_ms=1_000,
    )


def same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Compare what was seen, in order, shard by shard."""
    assert ours == theirs, f"not the same records: {ours} != {theirs}"
    assert ours["records"] > 0


def as_many(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Compare how much was seen."""
    assert ours["records"] == theirs["records"] > 0


def contests() -> Iterator[Contest]:
    """Yield the small pages against the loop, and four shards against one."""
    os.environ["TZ"] = "UTC"  # As in Lambda.
    with ExitStack() as stack:
        aws = stack.enter_context(EmbeddedAws(behaviour=AwsBehaviour(kinesis_quotas=False)))
        account = Account(aws)

        def started(pages: Pages, program: str, tables: Callable[[Task], Task]) -> Consumer:
            endpoint = stack.enter_context(serving(pages))
            env = process_environment(aws, program) | {"AWS_ENDPOINT_URL_KINESIS": endpoint}
            consumer = Consumer([sys.executable, program], env=env, tables=tables)
            stack.callback(consumer.close)
            return consumer

        worker = partial(started, program=OURS, tables=account.our_tables)
        loop = partial(started, program="boto3_loop.py")
        ours = worker(SMALL)
        theirs = loop(SMALL, tables=partial(account.peer_table, key="leaseKey"))
        yield against_the_loop(account, ours, theirs)
        yield four_against_one(account, "small", SMALL, (ours, worker(one_shard(SMALL))))
        yield four_against_one(account, "full", FULL, (worker(FULL), worker(one_shard(FULL))))


def against_the_loop(account: Account, ours: Consumer, theirs: Consumer) -> Contest:
    """Return the contest of small pages."""
    count = SMALL.shards * SMALL.pages
    return Contest(
        name="live_pages",
        compares=f"{count:,} pages of {SMALL.records} records, consumed and checkpointed",
        ours=partial(ours.consume, account, task_of(SMALL)),
        peer=partial(theirs.consume, account, task_of(SMALL)),
        peer_name="a loop of boto3",
        check=same,
        gate=2.8,
        goal=3.0,
        clock=lambda: ours.cpu_s + theirs.cpu_s,
        time_goes_to="the loop and its rounds, signing, parsing, a hop to the handler's thread.",
    )


def four_against_one(
    account: Account, what: str, pages: Pages, workers: tuple[Consumer, Consumer]
) -> Contest:
    """Return the contest of a worker with four shards, and one with as many pages of one."""
    four, one = workers
    return Contest(
        name=f"live_pages_four_shards_{what}",
        compares=f"a worker with {pages.shards} shards, {what} pages",
        ours=partial(four.consume, account, task_of(pages)),
        peer=partial(one.consume, account, task_of(one_shard(pages))),
        peer_name="the same records in one shard",
        check=as_many,
        goal=0.9,
        clock=lambda: four.cpu_s + one.cpu_s,
        time_goes_to="each shard's own lease, and the shards' turns at the one handler.",
    )


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
