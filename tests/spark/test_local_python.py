"""The script that starts Spark's Python workers."""

import os
import socket
import stat
import struct
import subprocess
import sys

import pytest

from shardfleet_spark.host.local_python import local_python, use_local_python

NOBODY = 65534
PYTHONS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/spark/python/lib/pyspark.zip:/a b:/c", "/a b:/c"),
        ("/a:/spark/python/lib/pyspark.zip", "/a"),
        # As Spark 4.2 has it (core/src/main/scala/org/apache/spark/api/python/PythonUtils.scala).
        (
            "/s/lib/pyspark.zip:/s/lib/py4j-0.10.9.9-src.zip:/s/jars/spark-core_2.13-4.2.0.jar:/a",
            "/a",
        ),
        ("/their/packages.zip", "/their/packages.zip"),
        ("/a", "/a"),
        ("", ""),
        (":/a::/b:", "/a:/b"),  # An empty one would be the current folder.
    ],
)
def test_all_but_what_spark_puts_there_stays_on_the_path(tmp_path, monkeypatch, path, kept):
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


def test_what_reads_and_writes_a_source_is_started_by_the_script_as_tasks_are(monkeypatch):
    """Spark starts those by the driver's Python (api/python/PythonUtils.createPythonFunction)."""
    for name in PYTHONS:
        monkeypatch.delenv(name, raising=False)
    use_local_python()
    assert {os.environ[name] for name in PYTHONS} == {str(local_python())}


def test_workers_use_the_installed_pyspark(spark):
    def where(_rows):
        import pyspark  # noqa: PLC0415

        yield pyspark.__file__

    (file,) = spark.sparkContext.parallelize([0], 1).mapPartitions(where).collect()

    assert ".zip" not in file


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make another user's folder")
@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_folder_that_another_user_has_made_is_not_used(tmp_path, monkeypatch, mode):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    theirs = tmp_path / f"shardfleet-python-{os.getuid()}"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    theirs.chmod(mode)

    script = local_python.__wrapped__()

    assert list(theirs.iterdir()) == []
    for made in (script, script.parent):
        assert made.stat().st_uid == os.getuid()
        assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_its_folder_is_gone_when_the_process_has_ended(tmp_path):
    imported = "from shardfleet_spark.host.local_python import local_python as made"
    environment = os.environ | {"TMPDIR": str(tmp_path)}

    run = [sys.executable, "-c", f"{imported}; print(made().exists())"]
    said = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)

    assert said.stdout == "True\n"
    assert list(tmp_path.iterdir()) == []


def test_the_drivers_port_takes_no_object_from_a_stranger(spark):
    """A call of Spark's own protocol (network/protocol/RpcRequest), without the secret."""
    port = int(spark.sparkContext.getConf().get("spark.driver.port"))
    body = b"an object"
    frame = struct.pack(">QBQI", 21 + len(body), 3, 1, len(body)) + body

    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(frame)
        said = connection.recv(65_536)

    assert b"SaslMessage" in said, said
    assert b"readObject" not in said
