"""What is told about money at synthesis."""

import re

import pytest

from shardfleet.domain.cost.prices import PRICES
from shardfleet_ops.cost.model import Setup, State, per_month
from tests.cost.fleets import FLEETS, WATCH
from tests.cost.page import said_of

ARN = "arn:aws:kinesis:eu-central-1:111122223333:stream/orders"


@pytest.fixture(scope="session")
def cdk():
    # Imported here, because it starts Node, which collecting the tests shall not.
    import shardfleet_cdk  # noqa: PLC0415

    return shardfleet_cdk


@pytest.fixture
def told(cdk, handler_folder, new_app):
    """Return what a fleet of this stream says about its cost, and the fleet."""
    from aws_cdk import Stack  # noqa: PLC0415
    from aws_cdk import aws_kinesis as kinesis  # noqa: PLC0415

    def make(*, shards=None, on_demand=False, **options):
        stack = Stack(new_app(), "Stack")
        if shards:
            stream = kinesis.Stream(stack, "Orders", shard_count=shards)
        elif on_demand:
            stream = kinesis.Stream(stack, "Orders", stream_mode=kinesis.StreamMode.ON_DEMAND)
        else:
            stream = kinesis.Stream.from_stream_arn(stack, "Orders", ARN)
        handler = cdk.HandlerCode(folder=handler_folder)
        fleet = cdk.ShardFleet(stack, "Fleet", stream=stream, handler=handler, **options)
        notes = [str(entry.data) for entry in fleet.node.metadata]
        (note,) = [note for note in notes if note.startswith("expected cost")]
        return note, fleet

    return make


def test_a_stream_of_this_app_is_estimated_for_its_shards(told):
    note, fleet = told(shards=20)

    dollars = per_month(fleet.config, Setup(shards=20, **WATCH)).total
    assert f"20 shards, 3 workers: ${dollars:,.2f} (the shards themselves $219.00)" in note
    assert f"list prices of {PRICES.as_of}, us-east-1, no free tier" in note


@pytest.mark.parametrize("on_demand", [False, True])
def test_a_stream_of_unknown_size_is_estimated_for_some(told, on_demand):
    note, _ = told(on_demand=on_demand)

    assert re.findall(r"(\d+) shards?, (\d+) workers?:", note) == [
        ("1", "1"),
        ("10", "2"),
        ("100", "13"),
    ]


@pytest.mark.parametrize("fleet", FLEETS, ids=lambda fleet: fleet.name)
def test_synthesis_says_of_six_fleets_what_the_page_says(told, cdk, fleet):
    worker = cdk.WorkerOptions(memory_mb=fleet.worker_mb)
    note, _ = told(shards=fleet.shards, worker=worker, config=fleet.config)

    pattern = r"workers?: \$([\d.,]*\d)(?:, \$([\d.,]*\d) while all sleep)?"
    calm, asleep = re.search(pattern, note).groups()
    said = asleep if fleet.state is State.ASLEEP else calm
    assert float(said.replace(",", "")) == said_of(fleet)


def test_memory_counts(told, cdk):
    large, fleet = told(shards=8, worker=cdk.WorkerOptions(memory_mb=2_048))

    dollars = per_month(fleet.config, Setup(shards=8, worker_mb=2_048, **WATCH)).total
    assert f"${dollars:,.2f}" in large


def test_make_synth_prints_it_for_the_repositorys_stack(cdk, tmp_path):
    from shardfleet_cdk.synthesis import NO_BUNDLING, build_app, notes_of  # noqa: PLC0415

    app = build_app(outdir=tmp_path, context=NO_BUNDLING)
    (note,) = [note for note in notes_of(app.synth()) if "expected cost" in note]
    assert note.startswith("info: expected cost of the fleet a month")
    own = r"\(the shards themselves \$43\.80\)"
    assert re.search(rf"4 shards, \d+ workers?: \$\d+\.\d\d {own}", note)


@pytest.mark.parametrize(
    ("conf", "driver", "whole"),
    [
        # 4 vCPU and 16 GB each, 730 hours: 4 x 0.052624 + 16 x 0.0057785 = 0.302952 dollars.
        ({}, "$221.15", "$663.46"),
        # The executors 2 vCPU and 9 GB, a tenth of 8 being beside them: 0.1572545 dollars.
        ({"spark.executor.cores": "2", "spark.executor.memory": "8g"}, "$221.15", "$450.75"),
    ],
)
def test_a_spark_job_is_estimated_with_its_driver_alone_and_whole(
    cdk, new_app, conf, driver, whole
):
    """Finding A18; the prices are those of the EMR Serverless pricing page, x86_64."""
    from aws_cdk import Stack  # noqa: PLC0415
    from aws_cdk import aws_kinesis as kinesis  # noqa: PLC0415

    stack = Stack(new_app(), "Stack")
    pipeline = cdk.SparkPipeline(
        stack,
        "Archive",
        source=kinesis.Stream(stack, "Orders"),
        work=cdk.PipelineWork(transform="archive"),
        spark=cdk.SparkOptions(max_executors=2, conf=conf),
    )
    notes = [str(entry.data) for entry in pipeline.node.metadata]
    (note,) = [note for note in notes if note.startswith("expected cost")]

    assert f"its driver alone {driver} a month" in note
    assert f"with all 2 executors {whole}" in note
    assert PRICES.as_of in note
