"""`shardfleet init`: the first lines of a project of one's own."""

import re
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from shardfleet.errors import ConfigurationError
from shardfleet_ops.cli.fleet_access import JsonOption
from shardfleet_ops.cli.telling import tell

NAME_MOST = 60
"""Longest name of a project: what the CDK makes of it has the account's limits to keep."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

FILES = {
    "handler/handler.py": '''"""What is done with the records: this file is yours."""

import json

from shardfleet import Batch


def handle(batch: Batch) -> None:
    for record in batch:
        store(record.partition_key, json.loads(record.data))


def store(key: str, event: dict) -> None:
    """Keep one event; after a crash it comes again, so twice must have the effect of once."""
    print(f"{key}: {event}")
''',
    "app.py": """from shardfleet_cdk import HandlerCode, ShardFleet  # First: it finds Node.

import aws_cdk as cdk
from aws_cdk import aws_kinesis as kinesis

app = cdk.App()
stack = cdk.Stack(app, "$stack")
stream = kinesis.Stream(stack, "Stream", stream_name="$name", shard_count=4)
ShardFleet(stack, "Fleet", stream=stream, handler=HandlerCode(folder="handler"))
app.synth()
""",
    "cdk.json": """{"app": "python app.py"}
""",
    "test_handler.py": """from handler import handler

EVENTS = [(f"visitor-{n % 7}", {"number": n}) for n in range(200)]


def test_every_event_is_stored_whatever_happens_to_the_workers(fleet, sink, monkeypatch):
    monkeypatch.setattr(handler, "store", lambda key, event: sink.put(event["number"], key))

    fleet.run(handler.handle, EVENTS, hours=0.1, seed=7)

    assert len(sink) == len(EVENTS)
""",
    "events.jsonl": "".join(
        f'{{"visitor": "visitor-{n % 7}", "number": {n}}}\n' for n in range(100)
    ),
    "requirements.txt": """shardfleet[local]
""",
    ".gitignore": """__pycache__/
cdk.out/
.venv/
""",
    "README.md": """# $name

A stream of Kinesis, and a fleet of Lambda functions that hands its records to `handle` in
`handler/handler.py`.

```sh
pip install -r requirements.txt
```

Until shardfleet is on PyPI, install it from a checkout instead.

Run the handler here, without an AWS account, over the events of `events.jsonl`:

```sh
shardfleet local run --handler handler:handle --folder handler --input events.jsonl --key visitor
```

Leave a fleet running here; an edit of the handler is at work within seconds:

```sh
shardfleet local up --handler handler:handle --folder handler
```

Test it against workers that are killed, shards that split and calls that fail:

```sh
pytest
```

Deploy it to your account, and look at it:

```sh
npx cdk deploy
export SHARDFLEET_STACK=$stack
shardfleet status
shardfleet doctor
```

Packages that the handler needs go into `handler/requirements.txt`.
""",
}


def init(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Of the project, its folder and its stream.")
    ],
    *,
    as_json: JsonOption = False,
) -> None:
    """Write a project that runs, tests and deploys, into a new folder."""
    if not _NAME.fullmatch(name) or len(name) > NAME_MOST:
        raise ConfigurationError(
            f"{name!r}: lower-case letters, digits and single hyphens between them are allowed, "
            f"{NAME_MOST} characters at most, beginning with a letter"
        )
    folder = Path(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} exists and is not empty; nothing was written")
    stack = "".join(part.capitalize() for part in name.split("-"))
    for path, text in FILES.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(Template(text).substitute(name=name, stack=stack), "utf-8")
    line = f"{folder} has a handler, its test and a stack; {folder}/README.md has the next steps."
    document = {"folder": str(folder), "stack": stack, "files": list(FILES)}
    tell(document, [line], as_json=as_json)
