"""
A root folder as a Lambda function sees it, made of mounts in a namespace of its own.

Read-only but for `/tmp`; layers in `/opt`, code in `/var/task`, the runtime's client and SDK in
`/var/runtime`; no `/dev/shm`, so that a semaphore fails as on Lambda; a user without
rights; no network but loopback. All of it ends with the namespace: nothing is to be unmounted.
"""

import os
import shutil
import subprocess
from pathlib import Path

USER = "993:990"
"""Lambda's `sbx_user1051`."""

DEVICES = ("null", "zero", "random", "urandom")
SYSTEM = ("usr", "etc", "bin", "lib", "lib64", "sbin")


def missing():
    """Say what this machine lacks for it, or None."""
    for program in ("unshare", "mount", "chroot", "ip"):
        if not shutil.which(program):
            return f"`{program}` is not on PATH (Linux alone has what this needs)"
    return None if os.geteuid() == 0 else "it takes root to mount Lambda's layout"


def in_namespace(command):
    """Run a command where mounts, network and processes are its own; return its exit code."""
    words = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
    return subprocess.run([*words, *command], check=False).returncode


class Root:
    """The root folder of one function: `folder` is empty, `shown` are folders by their mounts."""

    def __init__(self, folder, python, shown):
        self.folder = folder
        self._python = python
        folder.mkdir(parents=True)
        _mount("-t", "tmpfs", "tmpfs", folder)
        for name in SYSTEM:
            found = python.base / name
            if found.is_symlink():
                (folder / name).symlink_to(found.readlink())
            elif found.exists():
                self._show(found, f"/{name}")
        if not python.prefix.startswith("/usr"):
            self._show(Path(python.prefix), python.prefix)
        (folder / "proc").mkdir()
        _mount("-t", "proc", "proc", folder / "proc")
        (folder / "dev").mkdir()
        for name in DEVICES:
            (folder / "dev" / name).touch()
            _mount("--bind", f"/dev/{name}", folder / "dev" / name)
        for target, source in shown.items():
            self._show(source, target)
        (folder / "tmp").mkdir()
        _mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", folder / "tmp")
        _mount("-o", "remount,bind,ro", folder)

    def start(self, *words, environment, folder="/var/task", **options):
        """Start the Python with words, as Lambda's user."""
        change = ("sh", "-c", 'cd "$0" && exec "$@"', folder)
        command = (
            shutil.which("chroot"),
            f"--userspec={USER}",
            str(self.folder),
            *change,
            self._python.inside,
        )
        plain = {"PATH": "/usr/bin:/bin", "LANG": "en_US.UTF-8", "TZ": ":UTC"}
        return subprocess.Popen([*command, *words], env={**plain, **environment}, **options)

    def _show(self, source, target):
        place = self.folder / target.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        _mount("--bind", source, place)
        _mount("-o", "remount,bind,ro", place)


def _mount(*words):
    subprocess.run(["mount", *map(str, words)], check=True)
