"""`shardfleet work`: what it is told is told once, by a person or by a stack."""

import pytest
from msgspec.structs import replace
from typer.main import get_command

from shardfleet.errors import ConfigurationError
from shardfleet_ops.cli import app as application
from shardfleet_ops.cli import work
from shardfleet_ops.cli.fleets import DeployedFleet
from tests.cli.conftest import CONFIG


@pytest.fixture
def workers(monkeypatch, tmp_path):
    """Let a stack deploy this fleet; return a call of the command, and what it makes of workers."""
    made = []
    (tmp_path / "shop.py").write_text("def handle(batch):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shardfleet.Worker.missing", lambda worker: made.append(worker) or [])

    def call(words, **fleet):
        config = replace(CONFIG, **fleet)
        found = DeployedFleet(config=config, manager="m-1", resources=())
        monkeypatch.setattr(work, "find_fleet", lambda _: found)
        command = ["work", "--handler", "shop:handle", "--check", *words.split()]
        get_command(application.app).main(command, standalone_mode=False)
        return made

    return call


def test_a_process_joins_a_stack_that_spills(workers):
    assert len(workers("--stack Clicks", spill=True)) == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("", "give both, or --stack"),
        ("--stream clicks", "give both, or --stack"),
        ("--stack Clicks --stream clicks", "it says every option"),
        ("--stack Clicks --failover-ms 3000", "it says every option"),
        ("--stack Clicks", "its stack runs all of it; deploy it with `spill=True`"),
        ("--stream clicks --application clicks --spill true", "--spill: no such option"),
    ],
)
def test_what_is_told_twice_or_not_at_all_is_refused(workers, words, why):
    with pytest.raises(ConfigurationError, match=why):
        workers(words)
