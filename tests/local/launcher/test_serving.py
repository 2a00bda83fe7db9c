"""`serve` starts, deploys, says how to use it, and stops when told."""

import threading

import pytest

from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.aws.serving import serve
from tests.local.launcher.conftest import write_assembly

pytestmark = pytest.mark.processes


def test_serving_ends_when_told_and_leaves_nothing(tmp_path):
    write_assembly(tmp_path)
    aws = EmbeddedAws()
    said, ending = [], threading.Event()

    def say(line):
        said.append(line)
        if "Ctrl-C" in line:
            topics = aws.client("sns").list_topics()["Topics"]
            said.append(f"{len(topics)} topic")
            ending.set()

    serve(aws, assembly=tmp_path, say=say, until=ending)
    text = "\n".join(said)
    assert "export AWS_ENDPOINT_URL=http://127.0.0.1:" in text
    assert "Stack S is deployed, 1 resources:\n  T = 1" in text
    assert "1 topic" in text
    assert aws.pid is None
