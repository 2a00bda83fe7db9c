"""A project that `init` writes: what is in it works as it stands."""

import os
import subprocess
import sys

import pytest

from shardfleet_ops.cli import app as application
from tests.test_readme import block_with


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_its_own_test_passes_and_its_app_is_readmes_which_a_test_synthesizes(here):
    assert application.run(["init", "clicks"]) == 0

    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=here / "clicks",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr
    assert (here / "clicks/app.py").read_text() == block_with("app.synth()")


def test_the_name_is_the_projects_everywhere(here):
    assert application.run(["init", "web-shop"]) == 0

    app = (here / "web-shop/app.py").read_text()
    assert 'cdk.Stack(app, "WebShop")' in app
    assert 'stream_name="web-shop"' in app
    assert "SHARDFLEET_STACK=WebShop" in (here / "web-shop/README.md").read_text()


@pytest.mark.parametrize("name", ["../clicks", "Clicks", "9", "a_b", "a-", "a" * 61, "-", "a\n"])
def test_a_name_that_no_stack_may_have_is_refused(here, capsys, name):
    assert application.run(["init", "--", name]) == 2
    assert "lower-case letters" in capsys.readouterr().err
    assert not list(here.iterdir())


def test_what_is_there_is_not_touched(here, capsys):
    (here / "clicks").mkdir()
    (here / "clicks/mine").write_text("x")

    assert application.run(["init", "clicks"]) == 2
    assert "clicks exists and is not empty" in capsys.readouterr().err
    assert [path.name for path in (here / "clicks").iterdir()] == ["mine"]


def test_an_empty_folder_is_filled(here):
    (here / "clicks").mkdir()

    assert application.run(["init", "clicks"]) == 0
    assert (here / "clicks/handler/handler.py").exists()
