"""
The source and the sink on older Sparks: `python -m tests.spark.older`, or `make spark-older`.

Each version gets an environment of its own, `.venv-spark-<version>`: that PySpark, and behind it
all that is in the environment which runs this. The tests are those of the newest Spark; what a
version lacks, they say themselves.
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import time
import venv
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("4.0", "4.1")
"""The lines of Spark that EMR and Glue have; the lock files name the releases."""

TESTS = (
    "test_stream_source.py",
    "test_batch_source.py",
    "test_sink.py",
    "test_sink_rows.py",
    "test_watermark.py",
    "test_arrow.py",
    "test_reader_direct.py",
    "test_patience.py",
    "test_draining.py",
    "test_tables.py",
)
LIVES_OF_TABLES = ("whatever_dies", "archive_and_what_follows", "takes_a_batch_once")
"""What three quarters of the time go to, in the tests' names."""


def environment(version):
    """Return the Python of a version's environment; make it if it is not there."""
    folder = ROOT / f".venv-spark-{version}"
    python = folder / "bin" / "python"
    lock = ROOT / f"requirements-spark-{version}.lock"
    done = folder / ".installed"
    if done.exists() and done.stat().st_mtime > lock.stat().st_mtime:
        return python
    venv.create(folder, clear=True, with_pip=True)
    words = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*words, "--no-deps", "--require-hashes", "-r", str(lock)], check=True)
    # Behind its own packages, those of this environment, with what their path files name.
    (site,) = folder.glob("lib/python*/site-packages")
    ours = sysconfig.get_path("purelib")
    (site / "shared.pth").write_text(f"import site; site.addsitedir({ours!r})\n", "utf-8")
    done.touch()
    return python


def run(version, arguments):
    """Run the tests on a version; return what came of it."""
    python = environment(version)
    report = ROOT / "build" / f"spark-{version}.xml"
    files = [str(Path("tests/spark") / name) for name in TESTS]
    words = [str(python), "-m", "pytest", "-q", f"--junit-xml={report}", *files, *arguments]
    shown = "import pyspark; print(pyspark.__version__)"
    found = subprocess.run([str(python), "-c", shown], capture_output=True, text=True, check=True)
    started = time.monotonic()
    code = subprocess.run(words, cwd=ROOT, check=False).returncode
    return {
        "pyspark": found.stdout.strip(),
        "exit_code": code,
        "seconds": round(time.monotonic() - started),
        **counts(report),
    }


def counts(report):
    """Return passed, skipped (with reasons) and failed of a pytest report."""
    cases = ET.parse(report).getroot().iter("testcase")  # noqa: S314 - written by pytest just now.
    passed, skipped, failed = 0, [], []
    for case in cases:
        name = f"{case.get('classname')}::{case.get('name')}"
        if (why := case.find("skipped")) is not None:
            skipped.append(f"{name}: {why.get('message')}")
        elif case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        else:
            passed += 1
    return {"passed": passed, "skipped": skipped, "failed": failed}


def main():
    """Run all versions, write the result, and end with 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", nargs="+", default=VERSIONS)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--short", action="store_true", help="without whole lives of tables")
    options, arguments = parser.parse_known_args()
    if options.short:
        arguments += ["-k", " and ".join(f"not {name}" for name in LIVES_OF_TABLES)]
    results = {version: run(version, arguments) for version in options.versions}
    for version, each in results.items():
        sys.stdout.write(
            f"Spark {each['pyspark']}: {each['passed']} passed, {len(each['skipped'])} skipped, "
            f"{len(each['failed'])} failed, {each['seconds']} s\n"
        )
        for line in (*each["skipped"], *each["failed"]):
            sys.stdout.write(f"  {version}: {line}\n")
    if options.output:
        whole = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "load_average": os.getloadavg(),
            "versions": results,
        }
        options.output.write_text(json.dumps(whole, indent=2) + "\n", "utf-8")
    sys.exit(any(each["exit_code"] for each in results.values()))


if __name__ == "__main__":
    main()
