"""
The first hour of somebody who has nothing: `python -m tests.first_hour`.

First README as a whole, in order, in a room with Python, make and git alone (`pasted_readme`). Then
the wheel, which is built and installed with one extra into an empty environment outside the
repository: with `local` a stack with a second fleet, and each fleet is asked by every command; with
`spark` the pipeline; with `cli` one process of `shardfleet work`, and how soon it handles its first
record. Packages come from the index that uv knows, at the lock's versions.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from shardfleet_local.aws.launcher import EmbeddedAws
from tests.end_to_end.test_any_app import READERS, SECOND, SHARDS
from tests.pasted_readme import PROMISES, pasted
from tests.test_readme import WITHOUT_BUNDLING, blocks, paste_files

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "build/first-hour/result.json"
UV = Path(sys.executable).parent / "uv"
FLEETS = ("clicks", "clicks-orders")
LIMIT_S = 600
FIRST_RECORD_S = 5.0
COMMANDS = (
    *READERS,
    ["put", "--input", "clicks.jsonl", "--key", "visitor"],
    ["tail", "--since", "15m", "--records", "1"],
)
# Run by the new environment's Python: the account, the stack, and what is asked of it.
DEPLOYED = """
import os, subprocess, sys
from shardfleet_local.aws.deploy import deploy
from shardfleet_local.aws.launcher import EmbeddedAws
with EmbeddedAws() as aws:
    deploy("cdk.out", "Clicks", aws)
    environment = os.environ | aws.environment()
    sys.exit(subprocess.run(["bash", "-ex", sys.argv[1]], env=environment).returncode)
"""
# The same of what `shardfleet template` wrote: its archives are copied, its template is a stack.
COPIED = """
import os, pathlib, subprocess, sys
from shardfleet_local.aws.launcher import EmbeddedAws
place = pathlib.Path("plain")
with EmbeddedAws() as aws:
    s3, stacks = aws.client("s3"), aws.client("cloudformation")
    s3.create_bucket(Bucket="mine")
    for file in [*place.glob("assets/*"), place / "template.json"]:
        s3.upload_file(str(file), "mine", f"clicks/{file.name}")
    given = {"AssetBucket": "mine", "AssetPrefix": "clicks/"}
    stacks.create_stack(
        StackName="Plain",
        TemplateURL=f"{aws.endpoint_url}/mine/clicks/template.json",
        Capabilities=["CAPABILITY_IAM"],
        Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in given.items()],
    )
    waiter = stacks.get_waiter("stack_create_complete")
    waiter.wait(StackName="Plain", WaiterConfig={"Delay": 1})
    environment = os.environ | aws.environment()
    sys.exit(subprocess.run(["bash", "-ex", sys.argv[1]], env=environment).returncode)
"""

VIEWED = """
import pandas
assert sorted(pandas.read_parquet("build/views")["views"]) == [42, 43, 43, 43, 43, 43, 43]
"""
# A producer of one's own: README's records into the stream.
PRODUCED = """
import asyncio, json, pathlib
from shardfleet.producer import OutgoingRecord, open_producer
async def main():
    lines = pathlib.Path("clicks.jsonl").read_text("utf-8").splitlines()
    records = [OutgoingRecord(json.loads(line)["visitor"], line.encode()) for line in lines]
    async with open_producer("clicks") as producer:
        assert len(await producer.send(records)) == len(lines)
asyncio.run(main())
"""

# A handler that says it was called; the process is new, so it is a file that is looked for.
NOTING = """
def handle(batch):
    open("seen.txt", "a").write(f"{len(batch)}\\n")
"""


class Newcomer:
    """An empty environment with one extra of the wheel, and a folder to work in."""

    def __init__(self, wheel, extra, top):
        self.folder = top / "build/shop"
        self._env = top / "env"
        subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, self._env], check=True)
        wanted = f"shardfleet[{extra}] @ {wheel.as_uri()}"
        constraint = ("--no-verify-hashes", "--constraint", ROOT / "requirements.lock")
        # As pip does, which compiles what it installs.
        quietly = ("--quiet", "--compile-bytecode")
        install = [UV, "pip", "install", *quietly, "--python", self._env, *constraint, wanted]
        subprocess.run(install, check=True)
        self.run("bash", "-ec", block("mkdir"), folder=top)
        paste_files(self.folder)

    def run(self, *words, folder=None, **environment):
        """Run a program of that environment; raise CalledProcessError unless it goes well."""
        where = {"cwd": folder or self.folder, "env": self._environment(environment)}
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        ran = subprocess.run(words, **where, **both, check=False, timeout=LIMIT_S)
        print(ran.stdout, end="", flush=True)  # noqa: T201 - what a newcomer sees
        ran.check_returncode()
        return ran.stdout

    def start(self, *words, **environment):
        """Start a program of that environment; the caller ends it."""
        program = str(self._env / "bin" / words[0])
        where = {"cwd": self.folder, "env": self._environment(environment)}
        return subprocess.Popen([program, *words[1:]], **where, stdin=subprocess.DEVNULL)

    def _environment(self, more):
        own = {"PATH": os.pathsep.join([str(self._env / "bin"), os.environ["PATH"]])}
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
        return inherited | own | more

    def paste(self, begins, **environment):
        """Run a block as it stands; it prints what README leads one to expect."""
        said = self.run("bash", "-exc", block(begins), **environment)
        assert [each for each in PROMISES[begins] if each not in said] == []


def block(begins):
    (found,) = [text for text in blocks("sh") if text.startswith(begins)]
    return found


def until_read(options):
    """Return a line of a script that waits until every shard is read, and fails after a minute."""
    reading = f"shardfleet leases --json {options} | grep -o READING | wc -l"
    return (
        f'for n in $(seq 61); do [ "$({reading})" = {SHARDS} ] && break; [ $n -lt 61 ]; sleep 1; '
        "done"
    )


def asked_of(fleet):
    """Return what is asked of a fleet, as a script: README's block, then every command."""
    yield until_read(f"--fleet {fleet}")
    yield f"export SHARDFLEET_FLEET={fleet}"
    yield block("export SHARDFLEET_STACK")
    yield "unset SHARDFLEET_FLEET"
    for command in COMMANDS:
        yield " ".join(["shardfleet", *command, "--fleet", fleet])


def local(newcomer):
    """Run the handler, the test of it, and a stack of two fleets."""
    newcomer.run("shardfleet", "--help")
    app = newcomer.folder / "app.py"
    app.write_text(app.read_text("utf-8").replace("app.synth()", f"{SECOND}\napp.synth()"))
    newcomer.run("python", "app.py", CDK_OUTDIR="cdk.out", CDK_CONTEXT_JSON=WITHOUT_BUNDLING)
    lines = [
        "export SHARDFLEET_STACK=Clicks",
        *(line for name in FLEETS for line in asked_of(name)),
    ]
    (newcomer.folder / "asked.sh").write_text("\n".join(lines), "utf-8")
    said = newcomer.run("python", "-c", DEPLOYED, "asked.sh")
    assert said.count("300 records sent") == 2 * len(FLEETS)  # In README's block, and after it.
    init(newcomer)
    plain(newcomer)


def init(newcomer):
    """Write a project, and do with it what its README says, up to the deploy."""
    newcomer.run("shardfleet", "init", "web-shop")
    folder = newcomer.folder / "web-shop"
    readme = (folder / "README.md").read_text("utf-8")
    for begins in ("shardfleet local run", "pytest"):
        (line,) = [line for line in readme.splitlines() if line.startswith(begins)]
        newcomer.run("bash", "-exc", line, folder=folder)
    unbundled = {"CDK_OUTDIR": "cdk.out", "CDK_CONTEXT_JSON": WITHOUT_BUNDLING}
    newcomer.run("python", "app.py", folder=folder, **unbundled)


def plain(newcomer):
    """Write the fleet as plain CloudFormation, judge and deploy it."""
    own = ["--handler", "handler:handle", "--folder", "handler"]
    newcomer.run("shardfleet", "template", "--out", "plain", *own)
    newcomer.run("shardfleet", "doctor", "--before", "plain/template.json")
    (newcomer.folder / "read.sh").write_text(until_read("--stack Plain"), "utf-8")
    newcomer.run("python", "-c", COPIED, "read.sh")


def spark(newcomer):
    """Run the pipeline on a stream with README's records."""
    with EmbeddedAws() as aws:
        kinesis = aws.client("kinesis")
        kinesis.create_stream(StreamName="clicks", ShardCount=SHARDS)
        kinesis.get_waiter("stream_exists").wait(StreamName="clicks", WaiterConfig={"Delay": 1})
        newcomer.run("python", "-c", PRODUCED, **aws.environment())
        newcomer.paste("shardfleet pipeline run --batch", **aws.environment())
    newcomer.run("python", "-c", VIEWED)


def cli(newcomer):
    """Run one command on a stream with records: how long after it the first one is handled."""
    seen = newcomer.folder / "seen.txt"
    (newcomer.folder / "noting.py").write_text(NOTING, "utf-8")
    words = ("--stream", "clicks", "--application", "clicks", "--handler", "noting:handle")
    with EmbeddedAws() as aws:
        kinesis = aws.client("kinesis")
        kinesis.create_stream(StreamName="clicks", ShardCount=SHARDS)
        kinesis.get_waiter("stream_exists").wait(StreamName="clicks", WaiterConfig={"Delay": 1})
        kinesis.put_record(StreamName="clicks", PartitionKey="k", Data=b"first")
        began = time.monotonic()
        process = newcomer.start("shardfleet", "work", *words, **aws.environment())
        try:
            while not seen.exists():
                assert process.poll() is None, "it has ended"
                assert time.monotonic() - began < LIMIT_S, "no record"
                time.sleep(0.01)
            first_s = time.monotonic() - began
        finally:
            process.terminate()
            assert process.wait(LIMIT_S) == 0
    print(f"[cli] first record {first_s:.2f} s after the command", flush=True)  # noqa: T201
    assert first_s <= FIRST_RECORD_S, f"first record after {first_s:.2f} s"


EXTRAS = {"local": local, "spark": spark, "cli": cli}
ROOMS = ("readme", *EXTRAS)


def main():
    """Go through the hour: README as it stands, then the wheel with each extra."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("rooms", nargs="*", default=list(ROOMS), help=" or ".join(ROOMS))
    rooms, result = parser.parse_args().rooms, {"took_s": {}}
    with tempfile.TemporaryDirectory(prefix="first-hour-") as top:
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", top]
        subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        (wheel,) = Path(top).glob("*.whl")
        for room in rooms:
            began, place = time.monotonic(), Path(top) / room
            place.mkdir()
            if room == "readme":
                result["readme_s"] = pasted(place)
            else:
                EXTRAS[room](Newcomer(wheel, room, place))
            result["took_s"][room] = round(time.monotonic() - began)
            print(f"[{room}] alone: {result['took_s'][room]} s", flush=True)  # noqa: T201
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
