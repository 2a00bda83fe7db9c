"""
The deployed assets on Lambda's Python: `python -m tests.deployed.run`, or `make runtime`.

Layers and handler are built as `cdk deploy` builds them, for this machine's processor and for the
other one; those for this one are unpacked as Lambda unpacks them (`root.py`) and imported, a fleet
runs on them in Lambda's own runtime client (`fleet.py`), and so do the tests of the library.

What it is not: not Amazon Linux (its C library, OpenSSL and SDK are others), no Firecracker, no
limit of memory and processor, no freezing (that is the embedded AWS's), and of the two processors
only this machine's runs: of the other one's asset, the names and processors of its files are told.
"""

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.deployed import fleet, root
from tests.deployed.pythons import NoPython, Python, bring, find, say

ROOT = Path(__file__).resolve().parents[2]
NEEDED = "3.14"
BESIDE = ("3.12", "3.13")
MACHINES = {"aarch64": "arm64", "arm64": "arm64", "x86_64": "x86_64"}
ELF = {"arm64": 183, "x86_64": 62}  # `e_machine`: EM_AARCH64, EM_X86_64 (elf.h)
TESTS = ("domain", "engine", "kpl", "runtime", "adapters", "functions")
BRIEF = ("kpl", "runtime", "functions")  # on the others
NOT_HERE = (
    # Loads a package of Spark's, to show that it would be seen.
    "runtime/test_cold_start.py::test_the_list_of_modules_would_show_a_package_that_is_loaded",
    # Here every process has loaded the library, to complete it by the test kit.
    "functions/test_handlers.py::test_the_powertools_example_loads_nothing_of_shardfleet",
)
# The checks of templates are in no function.
NOT_DEPLOYED = "tests/domain/test_template.py"
# What those tests do not use, and is large.
LEFT_OUT = re.compile(
    "aws-cdk|boto3-stubs|botocore-stubs|cdk-nag|constructs|jsii|mypy|numpy|pandas|py4j|"
    "pyarrow|pyspark|pywin32|ruff|types-|typing-inspection$|uv$"
)
SETTINGS = {
    "shardfleet:handler": "tests/deployed/handler",
    "shardfleet:config": {
        "leases_per_worker": 2,
        "manager_run_ms": 15_000,
        "handler_timeout_ms": 10_000,
        "cycle_ms": 2_000,
        "records_per_read": 50,
    },
}
# The tests want what a layer leaves out, the test kit for one; all else is the layer's.
SITE = """import sys
sys.path.append("/project/tools")
"""


def main():
    """Run all of it; return 1 if anything fails."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--inside", nargs=2, type=Path, help=argparse.SUPPRESS)
    told = f"this alone; may come twice (default: {NEEDED}, and {', '.join(BESIDE)} where they are)"
    parser.add_argument("--python", action="append", help=told)
    options, tests = parser.parse_known_args()
    if options.inside:
        return _inside(*options.inside, tests)
    # An end by a signal is one in good order: the namespace goes, and the temporary folder.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    problem = root.missing()
    if problem:
        say(f"make runtime: {problem}")
        return 1
    try:
        pythons = [bring(version) for version in options.python or [NEEDED]]
    except NoPython as error:
        say(f"make runtime: {error}")
        return 1
    if not options.python:
        pythons += filter(None, map(find, BESIDE))
    failed = [python.version for python in pythons if not _deployed(python, tests)]
    say(f"failed on Python {', '.join(failed)}" if failed else "all passed")
    return int(bool(failed))


def _deployed(python, tests):
    """Build for a Python, and enter the namespace; say whether all of it passed."""
    began = time.monotonic()
    here = MACHINES[platform.machine()]
    with tempfile.TemporaryDirectory(prefix="deployed-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for machine in sorted(ELF, key=lambda each: each == here):
            template = _synthesize(python, machine, folder / machine)
            _unpack(template, folder / machine)
            say(f"Python {python.version}, {_told(folder / machine, machine)}")
        _install(python, here, folder)
        given = {name: str(value) for name, value in vars(python).items()}
        (folder / "python.json").write_text(json.dumps(given), "utf-8")
        command = [sys.executable, "-m", "tests.deployed.run", *tests]
        code = root.in_namespace([*command, "--inside", str(folder), str(folder / here)])
    say(f"Python {python.version}: {time.monotonic() - began:.0f} s")
    return code == 0


def _synthesize(python, machine, folder):
    """Write the cloud assembly, bundled, and return the template."""
    from shardfleet_cdk import synthesis  # noqa: PLC0415 - starts Node

    # Byte code is made by the Python that is found on PATH.
    os.environ["PATH"] = f"{python.outside.parent}{os.pathsep}{os.environ['PATH']}"
    context = {
        **SETTINGS,
        "shardfleet:architecture": machine,
        "shardfleet:runtime": f"python{python.version}",
    }
    file = synthesis.synthesize(folder / "out", context=context, project=ROOT, bundle=True)
    return json.loads(file.read_text("utf-8"))


def _unpack(template, folder):
    """Lay layers and code out as Lambda does: `opt`, and the code of each function."""
    by_type = {"layer": [], "function": []}
    for resource in template["Resources"].values():
        kind = resource["Type"].rpartition("::")[2]
        properties = resource.get("Properties", {})
        if kind == "LayerVersion":
            by_type["layer"].append((folder / "opt", properties["Content"]["S3Key"]))
        elif kind == "Function":
            place = folder / properties["Handler"]
            by_type["function"].append((place, properties["Code"]["S3Key"]))
    for place, key in [*by_type["layer"], *by_type["function"]]:
        asset = folder / "out" / f"asset.{key.removesuffix('.zip')}"
        shutil.copytree(asset, place, dirs_exist_ok=True)
    (folder / "template.json").write_text(json.dumps(template), "utf-8")


def _told(folder, machine):
    """Tell what the assets have; every compiled file must be of the processor."""
    unpacked = [folder / "opt", folder / fleet.MANAGER, folder / fleet.WORKER]
    files = [path for place in unpacked for path in place.rglob("*") if path.is_file()]
    compiled = [path for path in files if path.suffix == ".so"]
    foreign = [
        path.name
        for path in compiled
        if int.from_bytes(path.read_bytes()[18:20], "little") != ELF[machine]
    ]
    assert compiled, "no compiled file"
    assert not foreign, f"not of {machine}: {', '.join(foreign)}"
    size = sum(path.stat().st_size for path in files) / 2**20
    byte_code = sum(path.suffix == ".pyc" for path in files)
    return (
        f"{machine}: {len(files)} files of {size:.1f} MB, {byte_code} of byte code, "
        f"{len(compiled)} compiled, all of {machine}"
    )


def _install(python, machine, folder):
    """Install Lambda's runtime client and SDK, and what the tests need beside the layers."""
    from shardfleet_cdk.bundling import install  # noqa: PLC0415 - starts Node
    from shardfleet_cdk.lambda_platform import MACHINES as TAGS  # noqa: PLC0415
    from shardfleet_cdk.lambda_platform import Platform  # noqa: PLC0415

    wanted = Platform(python.version, TAGS[machine])
    install(ROOT / "requirements-lambda.lock", folder / "runtime", wanted, locked=True)
    entries = re.split(r"\n(?=[a-z])", (ROOT / "requirements.lock").read_text("utf-8"))
    kept = [each for each in entries if not LEFT_OUT.match(each)]
    (folder / "tools.txt").write_text("\n".join(kept), "utf-8")
    install(folder / "tools.txt", folder / "tools", wanted, locked=True)
    (folder / "tools/sitecustomize.py").write_text(SITE, "utf-8")


def _inside(folder, assets, tests):
    """Be in the namespace: make the roots, import, run the fleet and the tests."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    given = json.loads((folder / "python.json").read_text("utf-8"))
    paths = {name: Path(given[name]) for name in ("outside", "base")}
    python = Python(**{**given, **paths})
    shown = {
        "/opt": assets / "opt",
        "/var/runtime": folder / "runtime",
        "/tools": folder / "tools",
        "/project": ROOT,
        "/deployed": Path(__file__).parent,
    }
    roots = {}
    for handler in (fleet.MANAGER, fleet.WORKER):
        own = {**shown, "/var/task": assets / handler}
        roots[handler] = root.Root(folder / f"root-{handler}", python, own)
    template = json.loads((assets / "template.json").read_text("utf-8"))
    try:
        say(f"  imported: {_imported(roots[fleet.WORKER])}")
        say(f"  {fleet.run(template, roots)}")
    except AssertionError as error:
        say(f"  FAILED: {error}")
        return 1
    folders = TESTS if python.version == NEEDED else BRIEF
    return _tests(roots[fleet.WORKER], tests or [f"tests/{name}" for name in folders])


def _imported(place):
    environment = {"PYTHONPATH": "/var/task:/opt/python:/var/runtime"}
    process = place.start(
        "/deployed/importing.py", environment=environment, stdout=subprocess.PIPE, text=True
    )
    out, _ = process.communicate()
    assert process.returncode == 0, "a module could not be imported"
    found = json.loads(out)
    assert not found["without_byte_code"], found
    assert (found["write"], found["connect"]) == ("EROFS", "ENETUNREACH"), found
    assert found["semaphore"], found
    assert found["places"]["msgspec"].startswith("/opt/python/"), found
    assert found["handler"] == "/var/task/handler.py", found
    return (
        f"{found['modules']} modules with their byte code on Python {found['python']} (but for "
        f"{', '.join(found['of_spark'])}, Spark's); a write to /opt fails with "
        f"{found['write']}, a semaphore with {found['semaphore']}, a connection beyond loopback "
        f"with {found['connect']}"
    )


def _tests(place, arguments):
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--numprocesses", "2"]
    process = place.start(
        *words,
        f"--ignore={NOT_DEPLOYED}",
        *(f"--deselect=tests/{name}" for name in NOT_HERE),
        *arguments,
        environment={
            "PYTHONPATH": "/opt/python:/tools",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": "/tmp",  # noqa: S108 - of the root, in memory
        },
        folder="/project",
    )
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
