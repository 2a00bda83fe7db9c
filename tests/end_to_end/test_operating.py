"""
pause, resume, drain, release and rewind against a deployed fleet, with records flowing.

What a person does in good order loses nothing and repeats nothing; what a rewind counts beforehand
is exactly what comes again.
"""

import json
import time
from collections import Counter

import pytest

from shardfleet_ops.cli import app as application
from tests.end_to_end.cloud import deployed, wait_until
from tests.end_to_end.watching import Feed, handled, out_of_order, read_calls

pytestmark = pytest.mark.processes

SHARDS = 4
DEADLINE_S = 120
CONFIG = {
    "leases_per_worker": 2,
    "failover_ms": 3_000,
    "cycle_ms": 1_000,
    "handler_timeout_ms": 5_000,
}


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("operating")
    with deployed(
        folder,
        handler="ledger",
        function="ledger:handler",
        environment={"LEDGER": str(folder / "ledger.jsonl")},
        config=CONFIG,
        shards=SHARDS,
    ) as fleet:
        yield fleet


@pytest.fixture
def ledger(clicks):
    return clicks.folder / "ledger.jsonl"


@pytest.fixture
def ask(clicks, monkeypatch, capsys):
    """Run a command as a person in that account would; return what it printed."""
    for name, value in clicks.aws.environment().items():
        monkeypatch.setenv(name, value)

    def run(*arguments, code=0):
        assert application.run(list(arguments)) == code, capsys.readouterr()
        return capsys.readouterr().out

    return run


def ask_json(ask, *arguments):
    return json.loads(ask(*arguments, "--json"))


def all_read(clicks, ask):
    def states():
        found = ask_json(ask, "status")["leases"]
        return found == {"READING": SHARDS}

    wait_until(states, what="every shard read", within_s=DEADLINE_S, fleet=clicks)


def all_handled(clicks, ledger, feed):
    wait_until(
        lambda: handled(read_calls(ledger)) >= feed.expected,
        what="every record handled",
        within_s=DEADLINE_S,
        fleet=clicks,
    )


def all_stored(clicks, feed):
    """Wait for the checkpoints, which come up to a second after the records are handled."""

    def stored():
        checkpoints = {key: lease["checkpoint"] for key, lease in clicks.leases().items()}
        return feed.newest.items() <= checkpoints.items()

    wait_until(stored, what="every checkpoint", within_s=DEADLINE_S, fleet=clicks)


def times_handled(ledger, feed):
    """Return how often each of a feed's records was handled."""
    found = Counter(record for call in read_calls(ledger) for record in call.records)
    return {record: found[record] for record in feed.expected}


def once(ledger, feed):
    return [record for record, times in times_handled(ledger, feed).items() if times != 1]


def calls_since(ledger, at, shard=None):
    return [
        call
        for call in read_calls(ledger)
        if call.at > at and (shard is None or call.shard == shard)
    ]


def test_without_a_yes_nothing_is_changed(clicks, ask):
    all_read(clicks, ask)
    before = clicks.documents("pause"), clicks.documents("slot").keys()

    for command in (
        ["pause", "--all"],
        ["drain"],
        ["release", "s0001"],
    ):
        found = json.loads(ask(*command, "--json", code=1))
        assert found["written"] is False
        assert len(found["leases"]) in (2, SHARDS)
        assert "Nothing was changed" in ask(*command, code=1)
    # Of these two there is nothing to do: all are read, from the oldest record on.
    assert ask_json(ask, "resume", "--all")["written"] is False
    assert ask_json(ask, "rewind", "--all", "--to", "TRIM_HORIZON")["written"] is False
    assert (clicks.documents("pause"), clicks.documents("slot").keys()) == before
    assert ask_json(ask, "status")["leases"] == {"READING": SHARDS}


def test_pause_and_resume_lose_and_repeat_nothing_with_records_flowing(clicks, ask, ledger):
    with Feed(clicks, name="paused") as feed:
        wait_until(lambda: feed.rounds > 20, what="records", within_s=DEADLINE_S)
        found = ask_json(ask, "pause", "--all", "--reason", "a new index", "--yes")
        assert (found["written"], found["left"]) == (True, [])
        assert {(row["state"], row["owner"]) for row in found["leases"]} == {("PAUSED", None)}
        assert all("a new index" in row["why"] for row in found["leases"])
        paused = time.time()
        wait_until(
            lambda: ask_json(ask, "status")["slots"] == {"ENDED": 2}, what="slots", within_s=90
        )
        assert calls_since(ledger, paused) == []
        assert ask_json(ask, "status")["leases"] == {"PAUSED": SHARDS}
        assert ask_json(ask, "resume")["paused"][0]["lease_key"] is None
        assert ask_json(ask, "resume", "--all", "--yes")["written"]
        all_read(clicks, ask)

    all_handled(clicks, ledger, feed)
    assert once(ledger, feed) == []
    assert out_of_order(read_calls(ledger)) == []
    # Kept, so that a late copy of the pause finds another version.
    assert clicks.documents("pause") == {"fleet": {"fleet": None, "leases": {}, "migration": None}}


def test_one_paused_shard_waits_while_the_others_go_on(clicks, ask, ledger):
    with Feed(clicks, name="one") as feed:
        shard = ask_json(ask, "leases")[0]["lease_key"]
        ask("pause", shard, "--yes")
        paused = time.time()
        time.sleep(5)
        assert calls_since(ledger, paused, shard) == []
        assert {call.shard for call in calls_since(ledger, paused)} == set(clicks.leases()) - {
            shard
        }
        wait_until(
            lambda: (
                dict(clicks.documents("plan")["last"]["left"]).get(shard, {}).get("is") == "Pause"
            ),
            what="a manager's turn after the shard was let go: while nothing moves, each minute",
            within_s=DEADLINE_S,
            fleet=clicks,
        )
        assert f"{shard} goes on" in ask("resume", shard, "--yes")

    all_handled(clicks, ledger, feed)
    assert once(ledger, feed) == []
    assert out_of_order(read_calls(ledger)) == []


def test_a_drained_fleet_has_no_execution_and_no_lease_and_loses_nothing(clicks, ask, ledger):
    with Feed(clicks, name="drained") as feed:
        all_read(clicks, ask)
        found = ask_json(ask, "drain", "--yes")
        assert found["left"] == []
        assert {row["state"] for row in found["slot_rows"]} == {"ENDED"}
        assert all("leaseOwner" not in lease for lease in clicks.leases().values())
        wait_until(
            lambda: not [e for e in clicks.executions() if e["status"] == "RUNNING"],
            what="executions over",
            within_s=30,
        )
        drained = time.time()
        time.sleep(5)
        assert calls_since(ledger, drained) == []
        ask("resume", "--all", "--yes")
        all_read(clicks, ask)

    all_handled(clicks, ledger, feed)
    assert once(ledger, feed) == []


def test_a_released_shard_and_a_released_worker_lose_and_repeat_nothing(clicks, ask, ledger):
    with Feed(clicks, name="released") as feed:
        all_read(clicks, ask)
        row = ask_json(ask, "leases")[0]
        assert ask_json(ask, "release", row["lease_key"], "--yes")["left"] == []
        all_read(clicks, ask)
        assert ask_json(ask, "leases")[0]["counter"] > row["counter"]

        before = clicks.documents("slot")["s0001"]["start_epoch"]
        found = ask_json(ask, "release", "s0001", "--yes")
        assert found["left"] == []
        all_read(clicks, ask)
        after = clicks.documents("slot")
        assert after["s0001"]["start_epoch"] > before or after["s0001"]["state"] == "ENDED"

    all_handled(clicks, ledger, feed)
    assert once(ledger, feed) == []
    assert out_of_order(read_calls(ledger)) == []


def test_a_forced_release_takes_the_lease_and_loses_nothing(clicks, ask, ledger):
    with Feed(clicks, name="forced") as feed:
        all_read(clicks, ask)
        shard = ask_json(ask, "leases")[0]["lease_key"]
        assert ask_json(ask, "release", shard, "--force", "--yes")["written"]
        all_read(clicks, ask)

    all_handled(clicks, ledger, feed)


def test_exactly_what_a_rewind_previews_comes_again(clicks, ask, ledger):
    """To an instant on all shards, then to a record on one, then to the oldest of one."""
    with Feed(clicks, name="early") as early:
        wait_until(lambda: early.rounds > 20, what="records", within_s=DEADLINE_S)
    all_handled(clicks, ledger, early)
    time.sleep(1)
    instant_ms = round(time.time() * 1000)
    with Feed(clicks, name="again") as feed:
        wait_until(lambda: feed.rounds > 20, what="records", within_s=DEADLINE_S)
    all_handled(clicks, ledger, feed)
    all_read(clicks, ask)
    assert once(ledger, feed) == []
    all_stored(clicks, feed)

    rewind = ["rewind", "--all", "--to", str(instant_ms)]
    preview = json.loads(ask(*rewind, "--json", code=1))
    assert preview["written"] is False
    assert sum(row["records"] for row in preview["leases"]) == len(feed.expected)
    began = time.time()
    done = ask_json(ask, *rewind, "--yes")
    assert [row["records"] for row in done["leases"]] == [r["records"] for r in preview["leases"]]
    assert {row["state"] for row in done["leases"]} == {"SET_BACK"}
    settled(clicks, ledger, began, sum(row["records"] for row in done["leases"]))
    assert set(times_handled(ledger, feed).values()) == {2}
    assert once(ledger, early) == []
    per_shard = Counter()
    for call in calls_since(ledger, began):
        per_shard[call.shard] += len(call.records)
    assert per_shard == {row["lease_key"]: row["records"] for row in done["leases"]}

    shard = done["leases"][0]["lease_key"]
    lines = ask("tail", "--shard", shard, "--since", str(instant_ms), "--records", "10", "--json")
    tenth = json.loads(lines.splitlines()[-1])["sequence_number"]
    all_read(clicks, ask)
    began = time.time()
    (row,) = ask_json(ask, "rewind", shard, "--to", tenth, "--yes")["leases"]
    assert row["records"] == per_shard[shard] - 10
    settled(clicks, ledger, began, row["records"])

    all_read(clicks, ask)
    began = time.time()
    words = ask("rewind", shard, "--to", "TRIM_HORIZON", "--yes")
    counted = int(words.split(": ")[1].split()[0])
    settled(clicks, ledger, began, counted)
    assert len(handled(calls_since(ledger, began))) == counted > row["records"]


def settled(clicks, ledger, began, records):
    """Wait until so many records came again, and see that no more do."""

    def come():
        return sum(len(call.records) for call in calls_since(ledger, began))

    wait_until(lambda: come() >= records, what=f"{records} records again", within_s=DEADLINE_S)
    time.sleep(3)
    assert come() == records


def test_a_name_that_is_no_lease_is_refused_with_what_there_is(ask, capsys):
    for command in (["pause", "nine"], ["release", "nine"], ["rewind", "nine", "--to", "1h"]):
        assert application.run(command) == application.EXIT_WRONG_INPUT
        assert "shardId-000000000000" in capsys.readouterr().err
    for command in (["pause"], ["rewind", "--to", "1h"]):
        assert application.run(command) == application.EXIT_WRONG_INPUT
        assert "--all" in capsys.readouterr().err
    for place in ("yesterday", "49196244095157386542582159325718281113887185950566514738"):
        assert application.run(["rewind", "--all", "--to", place]) == application.EXIT_WRONG_INPUT
        assert "--to" in capsys.readouterr().err
