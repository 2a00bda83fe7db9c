"""
README's blocks, pasted in order into one shell, in a room with Python, make and git alone.

The room is a clone of the repository, an empty home, and a PATH of links to the programs that a
plain system has: no Node, no Java, no uv. What README leaves to its reader is done here as a reader
would: the files that it names are written, there is an account (an embedded AWS, bootstrapped for
the CDK), the deploy is said yes to, and Ctrl-C ends what goes on for ever.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

from shardfleet_local.aws.launcher import EmbeddedAws
from tests.test_readme import BLOCK, FILE, README, ROOT

LIMIT_S = 2_400
WORK_S = 30
# Beside Python, make and git: the utilities of POSIX, and what every system has with them.
UTILITIES = """
awk base64 basename bash cat chmod cmp comm cp cut date dd df diff dirname du echo egrep env expr
false fgrep file find fold getconf grep gunzip gzip head hostname id kill ldconfig ldd ln ls mkdir
mkfifo mktemp mv nice nl nohup od paste printenv printf ps pwd readlink realpath rm rmdir sed seq
setsid sh sha256sum sleep sort split stat stty sync tail tar tee test timeout touch tr true tty
uname uniq unlink wc which xargs
"""
INHERITED = (
    "PIP_",
    "SSL_",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "http_proxy",
    "https_proxy",
    "NODE_EXTRA_",
)
BEGINS, ENDS = "::begins", "::ends"
# How a block begins, and what README promises that it prints.
PROMISES = {
    "make install": ["installing shardfleet itself"],
    "make demo": ["24,000"],
    "mkdir": [],
    "shardfleet local run": ["300 of 300 records handled", "v1 sees /1, view 1", "view 43"],
    "npx cdk deploy": ["✅  Clicks"],
    "shardfleet work": ["v1 sees /1, view 1"],
    "pytest": ["1 passed"],
    "export SHARDFLEET_STACK": ["300 records sent", " reading ", "Nothing is wrong"],
    "from pyspark.sql import SparkSession": [],
    "shardfleet pipeline run --batch": [],
    "shardfleet pipeline run --source": ["shardId-000000000003"],
    "shardfleet position export": ["4 shards"],
}
# What a reader does while a block goes on: another shell puts records.
MEANWHILE = "shardfleet put --stack Clicks --input clicks.jsonl --key visitor >/dev/null &"


def steps():
    """Yield README's files and blocks in their order: the file's name or the language, the text."""
    files = {match.start(2): match for match in FILE.finditer(README)}
    for match in BLOCK.finditer(README):
        named = files.get(match.start(2))
        yield (named[1], match[2]) if named else (match[1], match[2])


def script(account):
    """Yield the shell's lines: each block as it stands, between two marks."""
    for what, text in steps():
        if what.endswith(".py"):
            yield f"cat > {what} <<'END OF FILE'\n{text}END OF FILE"
            continue
        if text.startswith("npx"):
            yield from (f"export {name}={shlex.quote(value)}" for name, value in account.items())
        first = text.splitlines()[0]
        yield f"echo {BEGINS} {shlex.quote(first)}"
        if what == "python":
            yield f"python - <<'END OF FILE'\n{text}END OF FILE"
        elif first.startswith("shardfleet work"):
            yield f"{MEANWHILE}\ntimeout --preserve-status -s INT {WORK_S} {text}wait"
        else:
            yield text
        yield f"echo {ENDS}"


def furnished(top):
    """Make the room, and return the environment of its shell."""
    (top / "bin").mkdir()
    (top / "home").mkdir()
    (top / "bin/python3").symlink_to(os.path.realpath(sys.executable))
    for name in ("make", "git", *UTILITIES.split()):
        if found := shutil.which(name):
            (top / "bin" / name).symlink_to(found)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(top / "shardfleet")], check=True)
    kept = {name: value for name, value in os.environ.items() if name.startswith(INHERITED)}
    return {**kept, "PATH": str(top / "bin"), "HOME": str(top / "home"), "LANG": "C.UTF-8"}


def bootstrapped(aws):
    """Leave in the account what `cdk bootstrap` leaves, and return a person's environment of it."""
    name = "/cdk-bootstrap/hnb659fds/version"
    aws.client("ssm").put_parameter(Name=name, Value="30", Type="String")
    bucket = f"cdk-hnb659fds-assets-{aws.account_id}-{aws.region}"
    aws.client("s3").create_bucket(Bucket=bucket)
    # There is no terminal at which to say yes to the roles of the stack.
    return aws.environment() | {"CDK_REQUIRE_APPROVAL": "never"}


def pasted(top):
    """
    Paste README in a room below `top`; return how long each block took, in seconds.

    Raises:
        AssertionError: a command of a block did not exit with 0, or did not print what README
            says; the message is the block.

    """
    took_s, said, first, began = {}, [], "", time.monotonic()
    with EmbeddedAws() as aws:
        file, environment = top / "readme.sh", furnished(top)
        file.write_text("\n".join(script(bootstrapped(aws))) + "\n", "utf-8")
        shell = subprocess.Popen(
            ["bash", "-e", file],
            cwd=top / "shardfleet",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        limit = threading.Timer(LIMIT_S, os.killpg, (shell.pid, signal.SIGKILL))
        limit.start()
        try:
            for line in shell.stdout:
                sys.stdout.write(line)
                sys.stdout.flush()
                if line.startswith(BEGINS):
                    said, first, began = [], line.removeprefix(BEGINS).strip(), time.monotonic()
                elif line.startswith(ENDS):
                    took_s[first] = round(time.monotonic() - began, 1)
                    (wanted,) = [PROMISES[each] for each in PROMISES if first.startswith(each)]
                    missing = [each for each in wanted if each not in "".join(said)]
                    assert not missing, (first, missing)
                else:
                    said.append(line)
            assert shell.wait() == 0, first
        finally:
            limit.cancel()
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    assert len(took_s) == len(PROMISES)
    return took_s
