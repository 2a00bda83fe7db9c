"""
The templates of the least and of everything a fleet can be, whole, as they were last agreed to.

A wanted change is agreed to by writing them anew and reading the difference:
SHARDFLEET_TEST_SNAPSHOTS=write make test ARGS=tests/cdk/test_snapshots.py
"""

import json
import os
import re
from pathlib import Path

import pytest

SNAPSHOTS = Path(__file__).parent / "snapshots"
WRITE = os.environ.get("SHARDFLEET_TEST_SNAPSHOTS") == "write"
# What changes with the code that is uploaded: hashes of assets, and ids made from them.
HASH = re.compile(r"\b[0-9a-f]{64}\b")
VERSION = re.compile(r"(CurrentVersion[0-9A-F]{8})[0-9a-f]{32}")


def scrubbed(template):
    text = json.dumps(template, indent=1, sort_keys=True) + "\n"
    return VERSION.sub(r"\1", HASH.sub("<hash>", text))


@pytest.mark.parametrize("variant", ["minimum", "everything"])
def test_the_template_is_the_one_agreed_to(request, variant):
    found = scrubbed(request.getfixturevalue(variant))
    file = SNAPSHOTS / f"{variant}.json"
    if WRITE:
        file.parent.mkdir(exist_ok=True)
        file.write_text(found, "utf-8")

    assert found.splitlines() == file.read_text("utf-8").splitlines(), (
        "the template has changed; if it shall, write the snapshots anew: "
        "SHARDFLEET_TEST_SNAPSHOTS=write make test ARGS=tests/cdk/test_snapshots.py"
    )


def test_a_changed_right_is_seen_and_a_changed_asset_is_not(minimum):
    agreed = scrubbed(minimum)
    text = json.dumps(minimum)
    other_asset = json.loads(HASH.sub("f" * 64, text))
    other_right = json.loads(text.replace("kinesis:GetRecords", "kinesis:*"))

    assert scrubbed(other_asset) == agreed
    assert scrubbed(other_right) != agreed
