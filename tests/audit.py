"""
Asks a public source of advisories about every package of the locks: `python -m tests.audit`.

The source is OSV (https://google.github.io/osv.dev/post-v1-querybatch/): one request with all
packages, answers in the same order. What was not asked or not answered is a failure: an audit that
looked at nothing must not look like one that found nothing.
"""

import argparse
import json
import re
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "https://api.osv.dev/v1/querybatch"
LOCKS = [
    "requirements.lock",
    *(f"{part}/requirements.txt" for part in ("layer", "layer/sdk", "spark")),
]
LOCKS += ["package-lock.json"]


def packages_of(lock):
    """Return (ecosystem, name, version) of each package of a lock of Python's or npm's."""
    text = lock.read_text("utf-8")
    if lock.suffix != ".json":
        return [("PyPI", *pin) for pin in re.findall(r"(?m)^([\w.-]+)==([^\s;]+)", text)]
    return [
        ("npm", path.rpartition("node_modules/")[2], package["version"])
        for path, package in json.loads(text)["packages"].items()
        if path
    ]


def ask(source, packages):
    """Return the advisories of each package."""
    queries = [
        {"package": {"ecosystem": ecosystem, "name": name}, "version": version}
        for ecosystem, name, version in packages
    ]
    request = urllib.request.Request(  # noqa: S310 - a fixed address, or a test's
        source, json.dumps({"queries": queries}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
        results = json.load(answer)["results"]
    if len(results) != len(queries):
        message = f"{len(queries)} packages asked about, {len(results)} answers"
        raise ValueError(message)
    return [[each["id"] for each in result.get("vulns", [])] for result in results]


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.audit")
    parser.add_argument("--source", default=SOURCE)
    parser.add_argument("locks", nargs="*", default=[str(ROOT / name) for name in LOCKS])
    options = parser.parse_args(arguments)
    say = print
    packages = sorted({each for lock in options.locks for each in packages_of(Path(lock))})
    if not packages:
        say("nothing was audited: the locks list no package")
        return 1
    try:
        found = ask(options.source, packages)
    except (OSError, ValueError, KeyError) as error:
        say(f"nothing was audited: no source of advisories could be reached or read: {error}")
        return 1
    for (_, name, version), advisories in zip(packages, found, strict=True):
        for advisory in advisories:
            say(f"{name} {version}: {advisory}")
    say(f"{len(packages)} packages audited, {sum(map(bool, found))} with advisories")
    return 1 if any(found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
