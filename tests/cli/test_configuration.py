"""`shardfleet config`: the page of all settings is what the code says."""

import json
from pathlib import Path

from shardfleet.config import options
from shardfleet_ops.cli import app as application
from shardfleet_ops.cli.configuration import configuration_page

PAGE = Path(__file__).resolve().parents[2] / "docs/configuration.md"


def test_the_page_in_docs_is_what_the_code_says():
    hint = "run: .venv/bin/shardfleet config > docs/configuration.md"
    assert PAGE.read_text("utf-8") == configuration_page(), hint


def test_every_setting_has_a_row_with_default_range_and_meaning():
    rows = [line.split(" | ") for line in configuration_page().splitlines() if line[:3] == "| `"]

    names = [f"| `{each.name}`" for each in options()]
    assert sorted(row[0] for row in rows) == sorted(names)
    assert ["| `failover_ms`", "`10000`", "1000 or more"] in [row[:3] for row in rows]
    assert ["| `max_workers`", "`16`", "1 to 1000"] in [row[:3] for row in rows]
    assert ["| `misrouted`", "`deliver`", "`deliver`, `in-range`, `kpl`"] in [
        row[:3] for row in rows
    ]
    assert ["| `stream_arn`", "set by the construct", "text"] in [row[:3] for row in rows]


def test_settings_for_experts_and_those_of_the_construct_stand_apart():
    _, settings, for_experts, of_construct = configuration_page().split("\n## ")

    assert "| `max_attempts` |" in settings
    assert "| `cycle_ms` |" in for_experts
    assert "| `stream_arn` |" in of_construct


def test_json_has_the_same_for_programs(capsys):
    assert application.run(["config", "--json"]) == 0

    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["cycle_ms"]["default"] == 20_000
    assert found["cycle_ms"]["set_by"] == "experts"
    assert "manager turns" in found["cycle_ms"]["meaning"]
