"""`serve` starts, deploys, says how to use it, and stops when told."""

import json
import threading

import pytest

from shardfleet.local.aws.launcher import EmbeddedAws
from shardfleet.local.aws.serving import serve

pytestmark = pytest.mark.processes


def test_serving_ends_when_told_and_leaves_nothing(tmp_path):
    template = {"Resources": {"T": {"Type": "AWS::SNS::Topic"}}, "Outputs": {"T": {"Value": "1"}}}
    (tmp_path / "S.template.json").write_text(json.dumps(template))
    artifact = {
        "type": "aws:cloudformation:stack",
        "properties": {"templateFile": "S.template.json"},
    }
    (tmp_path / "manifest.json").write_text(json.dumps({"artifacts": {"S": artifact}}))
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
