"""A pipeline on an account that refuses it, or is not there: a few lines, as of any command."""

import sys
from types import SimpleNamespace

import pytest

from shardfleet_local.access import AccessKey
from shardfleet_ops.cli import pipeline
from shardfleet_ops.cli.app import run
from tests.cli.test_situations import REFUSALS, service  # noqa: F401 - a fixture

pytestmark = pytest.mark.processes

SITUATIONS = {
    **{name: (403, code, reason, wanted) for name, (code, reason, wanted) in REFUSALS.items()},
    "a wrong region": (400, "ResourceNotFoundException", "Stream clicks not found.", "clicks"),
    "no network": (0, "", "", "connect"),
}
LINES_MOST = 12


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_pipeline_is_told_what_refuses_it(
    spark,
    spark_account,
    service,  # noqa: F811 - the fixture
    monkeypatch,
    capsys,
    situation,
):
    service.status, service.code, service.reason, wanted = SITUATIONS[situation]
    spark_account.use(SimpleNamespace(key=AccessKey()))
    port = service.server_port if service.status else 1
    monkeypatch.setattr(spark, "stop", lambda: None)
    monkeypatch.setattr(pipeline, "_session", lambda *_, **__: spark)
    monkeypatch.setattr(sys, "path", [*sys.path])  # Which the command puts its folder on.
    given = [
        "--source",
        "shardfleet:clicks",
        "--sink",
        f"parquet:{spark_account.file}.views",
        "--batch",
    ]
    for option in (f"endpoint=http://127.0.0.1:{port}", "region=eu-central-1"):
        given += ["--source-option", option]

    assert run(["pipeline", "run", *given]) == 1
    said = "".join(capsys.readouterr())
    assert "Traceback" not in said, said
    assert wanted in said
    assert len(said.splitlines()) <= LINES_MOST, said


FAILED = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker. Stack:
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/pyspark/worker.py", line 9, in main
    process()
  File "/code/shop/views.py", line 12, in priced
    return prices[row]
{}  File "/opt/venv/lib/python3.11/site-packages/pandas/core.py", line 3, in get
    raise KeyError(key)
{}

JVM stacktrace:
org.apache.spark.SparkException
	at org.apache.spark
"""


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (FAILED.format("", "KeyError: 'x'"), "KeyError: 'x' (views.py:12 in priced)"),
        (FAILED.format("   ^^^^^^\n", "a.B: c\nd"), "a.B: c (views.py:12 in priced)"),
        (
            FAILED.format("", "shardfleet.errors.StreamGone: no stream\nSQLSTATE: 38000").replace(
                "/code/shop", "/x/shardfleet"
            ),
            "StreamGone: no stream",
        ),
        ("[PATH_NOT_FOUND] Path does not exist: in. SQLSTATE: 42K03", None),
        ("no table\n\n=== Streaming Query ===\nIdentifier", "no table"),
    ],
)
def test_of_a_failure_the_cause_and_ones_own_line_are_told(said, told):
    assert pipeline.cause_of(said) == (told or said)
