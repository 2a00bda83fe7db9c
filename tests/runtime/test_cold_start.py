"""What each entry point loads before its first invocation: import time is paid at every start."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The worker's entry point is in the library; the other two are files of their own.
ENTRY_POINTS = {
    "worker": "import shardfleet.runtime.entry_points",
    "lease_manager": "import runpy; runpy.run_path({folder!r} + '/lease_manager/handler.py')",
    # Of several modules, which lie beside each other in /var/task.
    "first_run": "import sys; sys.path.insert(0, {folder!r} + '/first_run'); import handler",
}
# Never: for Spark, for tests, for the command line, for the embedded AWS, for the construct.
FOREIGN = {
    *("pyarrow", "numpy", "pandas", "pyspark", "pytest", "hypothesis", "typer", "rich"),
    *("aws_cdk", "jsii", "ministack", "moto", "orjson", "cbor2", "cryptography", "pydantic"),
}
# Not in worker and manager before they are needed: protobuf at the first aggregate; boto3, whose
# file transfers take 15 to 30 ms to load, not at all (botocore makes the clients); botocore itself
# when something fails, or a call has no wire; what sends metrics to a collector; Powertools never,
# for it is the handler's; and what only a slip in a name, an odd date or a put needs.
LATER = {
    *("google.protobuf", "shardfleet.kpl.messages_pb2", "boto3", "s3transfer"),
    "urllib3",
    *("shardfleet.adapters.telemetry.otlp", "urllib.request", "shardfleet.kpl.packing"),
    *("aws_lambda_powertools", "jmespath", "botocore", "difflib", "email.utils", "sysconfig"),
}
# The top-level modules that an entry point may load, beside the standard library: packages, the
# library, and what lies beside the first run's handler.
ALLOWED = {
    *("handler", "stack_events"),
    *("shardfleet", "boto3", "botocore", "dateutil", "jmespath", "six"),
    *("msgspec", "pybase64", "urllib3", "typing_extensions", "certifi", "s3transfer"),
}
LIST_MODULES = """
import json, sys
before = set(sys.modules)
{load}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def modules_loaded_by(load):
    found = subprocess.run(
        [sys.executable, "-c", LIST_MODULES.format(load=load)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(found.stdout)


@pytest.fixture(scope="module", params=ENTRY_POINTS)
def loaded(request):
    return modules_loaded_by(ENTRY_POINTS[request.param].format(folder=str(ROOT / "functions")))


@pytest.fixture(scope="module")
def loaded_by_the_worker():
    return modules_loaded_by(ENTRY_POINTS["worker"])


def test_an_entry_point_loads_no_package_that_it_does_not_need(loaded):
    tops = {name.partition(".")[0] for name in loaded}
    ours = {name for name in tops if not name.startswith("_")} - set(sys.stdlib_module_names)
    assert not tops & FOREIGN
    assert ours <= ALLOWED, f"new at cold start: {sorted(ours - ALLOWED)}"


def test_the_worker_does_not_load_what_is_needed_later_if_ever(loaded_by_the_worker):
    assert not [name for name in loaded_by_the_worker if name in LATER]


def test_the_worker_loads_nothing_that_only_the_manager_needs(loaded_by_the_worker):
    alone = ("shardfleet.engine.manager", "shardfleet.events.manager", "shardfleet.domain.turn")
    assert not [name for name in loaded_by_the_worker if name.startswith(alone)]


def test_an_entry_point_loads_nothing_of_the_other_parts_of_shardfleet(loaded):
    parts = {name.split(".")[1] for name in loaded if name.startswith("shardfleet.")}
    assert not any(name.startswith("shardfleet_") for name in loaded)
    assert not parts & {"local", "cli", "testing"}


def test_the_list_of_modules_would_show_a_package_that_is_loaded():
    assert "pyarrow" in {name.partition(".")[0] for name in modules_loaded_by("import pyarrow")}
