"""The script that starts Spark's Python workers."""

import os
import subprocess
import sys

import pytest

from shardfleet_spark.host.local_python import local_python, use_local_python


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/spark/python/lib/pyspark.zip:/a b:/c", "/a b:/c"),
        ("/a:/spark/python/lib/pyspark.zip", "/a"),
        ("/a", "/a"),
        ("", ""),
    ],
)
def test_all_but_the_copy_of_pyspark_stays_on_the_path(tmp_path, monkeypatch, path, kept):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = "import os, sys; print(os.environ['PYTHONPATH'], sys.executable, *sys.argv[1:])"

    found = subprocess.run(
        [local_python(), "-c", program, "x y", "z"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )

    assert found.stdout == f"{kept} {sys.executable} x y z\n"


def test_a_python_that_somebody_named_stays(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", "/their/python")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/their/python")

    use_local_python()

    assert os.environ["PYSPARK_PYTHON"] == "/their/python"


def test_workers_use_the_installed_pyspark(spark):
    def where(_rows):
        import pyspark  # noqa: PLC0415

        yield pyspark.__file__

    (file,) = spark.sparkContext.parallelize([0], 1).mapPartitions(where).collect()

    assert ".zip" not in file
