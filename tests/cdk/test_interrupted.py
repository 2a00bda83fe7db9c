"""Ctrl-C and SIGTERM while a stack is synthesized: nothing is printed, and nothing is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Both wait where they have begun: the CDK's Node runs then. They go on when the signal ended it.
WAITS = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's background job ignores it.
from jsii._runtime import kernel
from shardfleet_cdk import synthesis

def wait(*_, **__):
    print("begun", flush=True)
    try:
        time.sleep(120)
    finally:
        kernel.provider._process._process.wait(20)

synthesis.ShardFleetStack = wait
"""
COMMAND = "from shardfleet_ops.cli import main; sys.exit(main())"
APP = f"import runpy; runpy.run_path({str(ROOT / 'cdk/app.py')!r})"
ENDS = 30.0


@pytest.fixture
def begun(tmp_path):
    """Return a function: a program in a process group of its own, once it synthesizes."""
    processes = []
    (tmp_path / "work").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "project/h.py").write_text("def handle(batch):\n    pass\n", "utf-8")
    (tmp_path / "in.jsonl").write_text('{"a": 1}\n', "utf-8")

    def start(program, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", WAITS + program, *arguments],
            cwd=tmp_path / "project",
            env={
                **os.environ,
                "CDK_OUTDIR": str(tmp_path / "out"),
                "TMPDIR": str(tmp_path / "work"),
                "XDG_CACHE_HOME": str(tmp_path / "cache"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        processes.append(process)
        assert process.stdout.readline() == "begun\n", process.communicate()
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.processes
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(
    "program",
    [
        (COMMAND, "local", "run", "--handler", "h:handle", "--input", "../in.jsonl"),
        (APP,),
    ],
    ids=["command", "app"],
)
def test_a_signal_to_the_group_ends_the_synthesis_quietly(begun, program, number, code, tmp_path):
    process = begun(*program)

    os.killpg(process.pid, number)
    _, complaints = process.communicate(timeout=ENDS)

    assert "Traceback" not in complaints
    assert "Broken" not in complaints
    assert process.returncode == code
    assert not list((tmp_path / "work").glob("shardfleet-*"))
    # Node held the pipes of jsii alone; who is in the group yet would be signalled here.
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
