"""A user's own folder: what is copied, and what a handler that does not import is told."""

import tempfile
from pathlib import Path

import pytest

from shardfleet.errors import ConfigurationError
from shardfleet_local.own import own_code
from shardfleet_local.own.own_code import code_files, staged
from shardfleet_local.own.own_run import HandlerOutput


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "shop").mkdir(parents=True)
    (folder / "shop/clicks.py").write_text(
        "from shop.prices import price\ndef handle(batch): ...\n"
    )
    (folder / "shop/prices.py").write_text(
        "price = 1\ndef of_two(batch, *, currency): ...\ndef each(batch): yield\n"
    )
    (folder / "requirements.txt").write_text("something\n")
    for left_out in (".git/config", ".venv/pyvenv.cfg", "env/pyvenv.cfg", "node_modules/x.js"):
        (folder / left_out).parent.mkdir(parents=True)
        (folder / left_out).write_text("")
    return folder


def refusal(*arguments, target):
    with pytest.raises(ConfigurationError) as caught:
        staged(*arguments, target=target)
    return str(caught.value)


@pytest.mark.parametrize("temporary", ["tmp", "."])
def test_a_temporary_folder_inside_of_it_is_no_code(project, monkeypatch, temporary):
    place = project / temporary
    place.mkdir(exist_ok=True)
    (place / "shardfleet-other").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))

    with tempfile.TemporaryDirectory(prefix="shardfleet-") as work:
        target = staged(project, "shop.clicks:handle", target=Path(work) / "project")
        found = {path.name for path in target.iterdir()}
        seen = {path.relative_to(project).as_posix() for path in code_files(project)}

    assert found == {"shop"}
    assert seen == {"shop/clicks.py", "shop/prices.py", "requirements.txt"}


def test_the_code_is_copied_without_environments_and_version_control(project, tmp_path):
    target = staged(project, "shop.clicks:handle", target=tmp_path / "target")

    files = {str(p.relative_to(target)) for p in target.rglob("*") if p.suffix != ".pyc"}
    assert {"shop", "shop/clicks.py", "shop/prices.py"} <= files
    assert not files & {".git", ".venv", "env", "node_modules", "requirements.txt"}
    assert (project / "requirements.txt").exists()


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        ("shop.clicks", "package.module:function or :Class expected"),
        ("shop.nothing:handle", "there is no module 'shop.nothing'"),
        ("shop.clicks:nothing", "shop.clicks has no 'nothing'"),
        ("shop.prices:price", "handler shop.prices:price: it is a int, not a function"),
        ("shop.prices:of_two", "handler shop.prices:of_two(batch, *, currency): it takes neither"),
        ("shop.prices:each", "handler shop.prices:each: it is a generator function"),
    ],
)
def test_a_handler_that_cannot_be_called_is_one_message(project, tmp_path, handler, message):
    assert message in refusal(project, handler, target=tmp_path / "target")


def test_a_missing_package_comes_with_advice(project, tmp_path):
    (project / "shop/clicks.py").write_text("import no_such_package\ndef handle(batch): ...\n")

    found = refusal(project, "shop.clicks:handle", target=tmp_path / "target")

    assert "needs 'no_such_package', which is not installed" in found
    assert f"({project}/shop/clicks.py, line 1)" in found


def test_an_import_that_fails_names_the_users_own_line(project, tmp_path):
    (project / "shop/clicks.py").write_text("import json\n\nPRICES = json.loads('{')\n")

    found = refusal(project, "shop.clicks:handle", target=tmp_path / "target")

    assert "failed with JSONDecodeError" in found
    assert f"({project}/shop/clicks.py, line 3)" in found


def test_what_an_import_prints_is_not_taken_for_the_reason(project, tmp_path):
    source = "import atexit\natexit.register(print, 'bye')\nraise ValueError('a\\nb')\n"
    (project / "shop/clicks.py").write_text(source)

    found = refusal(project, "shop.clicks:handle", target=tmp_path / "target")

    assert "ValueError: a b (" in found
    assert "clicks.py, line 3)" in found


def test_a_folder_that_lambda_would_not_take_is_refused(project, tmp_path, monkeypatch):
    monkeypatch.setattr(own_code, "UNZIPPED_BYTES_MOST", 10)

    assert "--folder" in refusal(project, "shop.clicks:handle", target=tmp_path / "target")


def test_a_missing_folder_is_refused(tmp_path):
    assert "no such folder" in refusal(tmp_path / "nothing", "a:b", target=tmp_path / "target")


class Logs:
    """CloudWatch Logs with one stream, read by tokens as boto3 does."""

    def __init__(self):
        self.lines = []

    def get_paginator(self, name):
        return self

    def paginate(self, **_):
        return [{"logStreams": [{"logStreamName": "one"}]}]

    def get_log_events(self, **request):
        seen = int(request.get("nextToken", "0"))
        events = [{"message": line + "\n"} for line in self.lines[seen:]]
        return {"events": events, "nextForwardToken": str(len(self.lines))}


def test_only_what_the_handler_prints_is_shown_and_only_once():
    logs = Logs()
    output = HandlerOutput(logs, "group")
    logs.lines += ["START RequestId: 1 Version: 1", "hello", '{"service":"shardfleet","x":1}']

    assert output.read() == ["hello"]
    logs.lines += ['{"_aws": {}}', "again", "END RequestId: 1", "REPORT RequestId: 1\tDuration"]
    assert output.read() == ["again"]
    assert output.read() == []
