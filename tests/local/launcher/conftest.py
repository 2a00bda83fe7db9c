"""Small Lambda functions, made without a template, and a patient `eventually`."""

import io
import json
import textwrap
import time
import uuid
import zipfile
from contextlib import contextmanager

import pytest

ROLE_FOR_ALL = "arn:aws:iam::111122223333:role/any"
DEADLINE_S = 60.0
PAUSE_S = 0.05


def zipped(files):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as members:
        for name, text in files.items():
            members.writestr(name, textwrap.dedent(text))
    return archive.getvalue()


def write_assembly(folder):
    """Write what `cdk synth` would of a stack S with one topic."""
    template = {"Resources": {"T": {"Type": "AWS::SNS::Topic"}}, "Outputs": {"T": {"Value": "1"}}}
    (folder / "S.template.json").write_text(json.dumps(template))
    artifact = {
        "type": "aws:cloudformation:stack",
        "properties": {"templateFile": "S.template.json"},
    }
    (folder / "manifest.json").write_text(json.dumps({"artifacts": {"S": artifact}}))


class Function:
    """A function in the embedded AWS, called and looked at by its name."""

    def __init__(self, aws, name):
        self.aws = aws
        self.name = name
        self._lambda = aws.client("lambda")

    def invoke(self, event=None):
        answer = self._lambda.invoke(FunctionName=self.name, Payload=json.dumps(event))
        payload = json.loads(answer["Payload"].read())
        return payload, answer.get("FunctionError")

    def processes(self):
        return self.aws.worker_processes(self.name)

    def log_lines(self):
        logs = self.aws.client("logs")
        group = f"/aws/lambda/{self.name}"
        pages = logs.get_paginator("filter_log_events").paginate(logGroupName=group)
        try:
            return [event["message"] for page in pages for event in page["events"]]
        except logs.exceptions.ResourceNotFoundException:
            return []


@pytest.fixture
def make_function(embedded_aws):
    """Create a function from source text: `make_function("def handler(event, context): ...")`."""
    with functions_of(embedded_aws) as make:
        yield make


@contextmanager
def functions_of(embedded_aws):
    """Yield what makes functions in an embedded AWS; they are deleted at the end."""
    client = embedded_aws.client("lambda")
    made = []

    def make(code, *, files=None, **settings):
        name = f"function-{uuid.uuid4().hex[:12]}"
        client.create_function(
            FunctionName=name,
            **{"Runtime": "python3.13", "Role": ROLE_FOR_ALL, "Timeout": 30, **settings},
            Handler="index.handler",
            Code={"ZipFile": zipped({"index.py": code, **(files or {})})},
        )
        made.append(name)
        return Function(embedded_aws, name)

    yield make
    for name in made:
        client.delete_function(FunctionName=name)


@pytest.fixture
def eventually():
    """Ask until the answer is true, and return it; fail after a minute with the last answer."""

    def ask(question, *, deadline_s=DEADLINE_S, pause_s=PAUSE_S):
        deadline = time.monotonic() + deadline_s
        while True:
            answer = question()
            if answer:
                return answer
            assert time.monotonic() < deadline, f"still {answer!r} after {deadline_s} s"
            time.sleep(pause_s)

    return ask
