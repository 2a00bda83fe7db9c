"""An answer that a command meets is told in one line, with an exit code of its kind."""

import pytest

from shardfleet.domain.refusals import RefusalKind
from shardfleet_ops.cli import app as application
from shardfleet_ops.cli.app import EXIT_FAILED, EXIT_WRONG_INPUT
from tests.engine.single_answers import KINDS, LANDED, answer

# A person's to mend are rights and credentials; of anything else the command is given again.
EXITS = dict.fromkeys(KINDS, EXIT_FAILED) | dict.fromkeys(
    (RefusalKind.UNTRUSTED, RefusalKind.DENIED, RefusalKind.KEY_DENIED), EXIT_WRONG_INPUT
)


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != LANDED])
def test_an_answer_is_told_in_one_line(kind, writes, monkeypatch, capsys):
    def refused(**_):
        raise answer(kind, "GetItem of slot s1", writes=writes)

    monkeypatch.setattr(application, "app", refused)
    assert application.run(["status"]) == EXITS[kind]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("shardfleet: GetItem of slot s1")
    assert "Traceback" not in line
