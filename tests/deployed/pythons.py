"""
Finds a Python of Lambda's version on this machine, or brings one.

Looked for on PATH, among pyenv's and uv's, and in `build/runtime`, where Debian's packages are
unpacked (by debootstrap, as root) if nothing else is there; `make clean` removes it.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "build" / "runtime"
TELL = "import sys; print('%d.%d' % sys.version_info[:2], sys.base_prefix, sys.executable)"
# Debian's testing has Python 3.14; its packages need a newer C library than most machines have, so
# the interpreter is started by the loader that came along.
STARTER = """#!/bin/sh
root="$(cd "$(dirname "$0")/../../.." && pwd)"
for loader in "$root"/lib64/ld-linux-*.so.* "$root"/lib/ld-linux-*.so.*; do
  if [ -e "$loader" ]; then break; fi
done
libraries="$(echo "$root"/usr/lib/*-linux-gnu)"
exec "$loader" --library-path "$libraries" --argv0 "$0" "$root/usr/bin/python{version}" "$@"
"""


say = partial(print, flush=True)


class NoPython(Exception):
    """There is no such Python here, and none could be brought; the message says how to get one."""


@dataclass(frozen=True)
class Python:
    """
    An interpreter.

    `outside` starts it on this machine, `inside` where `base` is the root folder; `prefix` is where
    its library lies, inside.
    """

    version: str
    outside: Path
    inside: str
    prefix: str
    base: Path


def find(version):
    """Return a Python of that version, or None."""
    candidates = [
        shutil.which(f"python{version}"),
        *sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")),
        _of_uv(version),
    ]
    for candidate in filter(None, candidates):
        told = _told(candidate)
        if told and told[0] == version:
            return Python(version, Path(told[2]), told[2], told[1], Path("/"))
    return _of_debian(version)


def bring(version):
    """
    Return a Python of that version; install it into `build/runtime` if it is not here.

    Raises:
        NoPython: it cannot be installed.

    """
    found = find(version)
    if found:
        return found
    if shutil.which("debootstrap") and os.geteuid() == 0:
        _unpack_debian(version)
    else:
        words = (sys.executable, "-m", "uv", "python", "install", version)
        subprocess.run(words, check=False, capture_output=True)
    found = find(version)
    if not found:
        raise NoPython(
            f"no Python {version} was found. Put one on PATH, or let this bring it: as root with "
            f"debootstrap (Debian and Ubuntu: apt-get install debootstrap), or where "
            f"`uv python install {version}` reaches its releases."
        )
    return found


def _told(python):
    try:
        run = subprocess.run(
            [python, "-I", "-c", TELL], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return run.stdout.split() if run.returncode == 0 else None


def _of_uv(version):
    words = ("uv", "python", "find", "--no-project", "--no-python-downloads", "--system", version)
    run = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, check=False
    )
    return run.stdout.strip() or None


def _of_debian(version):
    base = BUILD / f"python{version}"
    starter = base / f"usr/local/bin/python{version}"
    told = _told(starter)
    if not told or told[0] != version:
        return None
    return Python(version, starter, f"/usr/bin/python{version}", "/usr", base)


def _unpack_debian(version):
    say(f"unpacking Debian's Python {version} into build/runtime (once, 2 min)")
    base, part = BUILD / f"python{version}", BUILD / f"python{version}.part"
    shutil.rmtree(part, ignore_errors=True)
    BUILD.mkdir(parents=True, exist_ok=True)
    words = ("debootstrap", "--variant=minbase", f"--include=python{version}", "testing")
    run = subprocess.run([*words, str(part)], capture_output=True, text=True, check=False)
    if run.returncode:
        raise NoPython(
            f"debootstrap could not bring Python {version}: {run.stdout[-400:]}{run.stderr[-400:]}"
        )
    starter = part / f"usr/local/bin/python{version}"
    starter.write_text(STARTER.replace("{version}", version), "utf-8")
    starter.chmod(0o755)
    part.rename(base)
