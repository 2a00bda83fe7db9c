"""`shardfleet redrive` shows every place before anything is deleted, and what it will leave."""

import json
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from shardfleet_ops.cli import app as application
from shardfleet_ops.cli import redrive
from shardfleet_ops.operate.given_up import FailedBucket, RefusedDocument, given_up_of
from tests.adapters.test_dead_letters import STREAM
from tests.adapters.test_redrive_places import BUCKET, FOLDER, KEY, PLACES, URL, message

OWN = FailedBucket(bucket=BUCKET, folder=FOLDER)


@pytest.fixture
def said(monkeypatch, capsys):
    """Return a function: what the command prints, of these documents."""

    def run(*documents, arguments=()):
        async def look():
            return documents

        async def leave(_):
            return None

        @asynccontextmanager
        async def opened(_name, _place):
            kept = SimpleNamespace(look=look, leave=leave)
            yield redrive._Opened(kept, None, STREAM, OWN, 60)

        monkeypatch.setattr(redrive, "_opened", opened)
        code = application.run(["redrive", "--from", URL, *arguments])
        return code, " ".join(capsys.readouterr().out.split())

    return run


def test_the_preview_shows_every_place_and_what_is_left_where_it_is(said):
    own = f"s3://{BUCKET}/{KEY}"
    documents = [
        given_up_of(message("records elsewhere", own), where=f"{URL}#1"),
        given_up_of(message("records in it, too", PLACES["another bucket"]), where=f"{URL}#2"),
    ]
    code, text = said(*documents, RefusedDocument(where=f"{URL}#3", reason=f"{URL}#3: no"))
    assert code == 1
    assert f"{URL}#1, and {own}" in text
    assert f"left, with what is behind it: {URL}#2: it names {PLACES['another bucket']}" in text
    assert f"Left: {URL}#3: no" in text

    code, text = said(*documents, arguments=("--json",))
    shown = json.loads(text)
    assert [each["location"] for each in shown["found"]] == [own, PLACES["another bucket"]]
    assert [bool(each["refusal"]) for each in shown["found"]] == [False, True]


def test_what_is_refused_alone_is_an_exit_code_too(said):
    assert said(RefusedDocument(where="q", reason="q: no"), arguments=("--yes",))[0] == 1


def test_the_fleets_folder_is_that_of_its_worker():
    config = SimpleNamespace(
        fleet="fulfilment",
        failed_bucket=BUCKET,
        state_machine_arn="arn:aws:states:eu-central-1:111122223333:stateMachine:worker",
    )
    assert redrive.failed_bucket(config) == OWN
