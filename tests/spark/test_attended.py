"""A process of Spark's whose driver is gone ends, although the endpoint is gone as well."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardfleet_spark.host.attended import AttendedClock, ParentGone
from tests.virtual import virtual

pytestmark = pytest.mark.processes
LIMIT_S = 60

# Port 9 is that of `discard`, which no machine serves: each call is refused, and repeated.
READER = """
from pyspark.sql.types import StructType
from shardfleet_spark.options.options import read_options
from shardfleet_spark.options.source_options import SourceOptions
from shardfleet_spark.stream_reader import KinesisStreamReader

arn = "arn:aws:kinesis:eu-central-1:123456789012:stream/gone"
reader = KinesisStreamReader(
    read_options(SourceOptions, {"stream": arn, "endpoint": "http://127.0.0.1:9"})
)
reader.prepareForTriggerAvailableNow()  # As Spark does first: its driver lives.
print("asking", flush=True)
reader.latestOffset(None, None)
"""
DRIVER = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {READER!r}], stdout=subprocess.PIPE, text=True)
print(child.pid, child.stdout.readline(), flush=True)
time.sleep(600)
"""


def runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] != "Z"  # Nobody may have waited for it yet.


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_source_whose_driver_and_endpoint_are_gone_ends_by_itself():
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        pid = int(driver.stdout.readline().split()[0])
        assert runs(pid)
    finally:
        driver.kill()
        driver.communicate()
    deadline = time.monotonic() + LIMIT_S
    while runs(pid):
        assert time.monotonic() < deadline, "the source still runs without its driver"
        time.sleep(0.1)


@virtual
async def test_waiting_ends_when_the_parent_is_another_one(monkeypatch):
    clock = AttendedClock()
    await clock.sleep_ms(1)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert not clock.is_attended()
    with pytest.raises(ParentGone):
        await clock.sleep_ms(600_000)
