"""A small share of `make fuzz` in each run of the tests, and the faults that it has found."""

import json
import re
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardfleet.domain.slots.slot import SlotInput
from shardfleet.engine.ports import Document
from shardfleet.engine.state.documents import read_as
from shardfleet.engine.state.kinds import LANES
from shardfleet.errors import ConfigurationError
from shardfleet_local.rig.source import read_source
from tests.fuzz import run as program
from tests.fuzz.targets import MEBIBYTE, TARGETS, Heap, Target, check_cost, run


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_that_others_write_brings_a_parser_down(name):
    target = TARGETS[name]

    @settings(max_examples=150 // target.dearness, suppress_health_check=list(HealthCheck))
    @given(target.inputs)
    def try_one(value):
        run(target, value)

    try_one()


RECORD = bytes.fromhex("1a 04 08 00 1a 00")
LONG_KEY = b"\x0a\x80\x80\x04" + "ä".encode() * 32_768 + RECORD
SHORT_KEY = b"\x0a\x01k" + RECORD


@pytest.mark.parametrize("policy", ["deliver", "in-range", "kpl"])
@pytest.mark.parametrize(
    ("sound", "unit"),
    [(LONG_KEY, RECORD), (SHORT_KEY, b"\x0a\x01\xff"), (SHORT_KEY, b"\x1a\x00")],
    ids=["a long key that all records share", "bad keys that no record has", "empty records"],
)
def test_what_was_dear_once_costs_no_more_than_its_size_allows(sound, unit, policy):
    check_cost(Heap(MEBIBYTE, sound, unit, 0, b"", policy))


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan"), [], "x", None])
def test_a_worker_s_input_with_an_absurd_number_is_refused_by_name(number):
    payload = {"version": 1, "slot": "s", "name": "n", "start_epoch": number, "generation": 0}

    with pytest.raises(ConfigurationError, match=r"start_epoch .* a whole number expected"):
        SlotInput.from_payload(payload)


@pytest.mark.parametrize(
    ("ahead", "told"),
    [
        ({"x": {"1": "7:0"}}, "what it says means nothing"),
        ({"0": {"1": "7:0"}}, "what it says means nothing"),
        ({"2": {"1": "LATEST:0"}}, "what it says means nothing"),
        ({"2": {"1": "7:x"}}, "what it says means nothing"),
        ({"2": {"1": 7}}, r"Expected `str`, got `int` - at `\$.ahead\[...\]\[...\]`"),
        ([], r"Expected `object`, got `array` - at `\$.ahead`"),
    ],
)
def test_a_note_that_somebody_changed_is_refused_by_its_document(ahead, told):
    body = {"since": "5:0", "through": "9:0", "ahead": ahead}

    found = read_as(LANES, Document(LANES, "shard", 1, body))

    assert found.body is None
    assert re.search(told, found.reason)


@pytest.mark.parametrize("payload", [[], "text", 7, None, [["version", 1]]])
def test_a_worker_s_input_that_is_no_object_is_refused(payload):
    with pytest.raises(ConfigurationError, match=r"worker input: .* found, an object expected"):
        SlotInput.from_payload(payload)


# Python up to 3.13 counts calls (sys.getrecursionlimit); 3.14 asks how much of its stack is left.
TOO_DEEP_FOR_EVERY_PYTHON = 2_000_000


def nested(depth):
    return '{"who": "a", "deep": ' + "[" * depth + "]" * depth + "}"


def test_a_line_of_json_that_is_nested_too_deeply_is_one_message(tmp_path):
    file = tmp_path / "deep.jsonl"
    file.write_text(nested(1) + "\n" + nested(TOO_DEEP_FOR_EVERY_PYTHON) + "\n")

    with pytest.raises(ConfigurationError, match=r"deep\.jsonl:2: .*nested too deeply"):
        read_source(str(file), "who")
    assert read_source(str(file), "who", rejects=True).rejects == {"nested too deeply": [2]}


@pytest.mark.parametrize("times", [0.5, 1, 5, 7])
@pytest.mark.parametrize("key", ["who", "deep"])
def test_a_line_of_json_is_taken_or_rejected_however_deeply_it_is_nested(tmp_path, times, key):
    file = tmp_path / "deep.jsonl"
    file.write_text(nested(int(times * sys.getrecursionlimit())) + "\n" + '{"who": 1, "deep": 1}\n')

    found = read_source(str(file), key, rejects=True)
    reasons = ("nested too deeply", "field 'deep' is no key")
    assert len(found.records) + sum(len(found.rejects.get(reason, ())) for reason in reasons) == 2


def fails(_):
    raise KeyError


def grows(_):
    bytearray(2 * MEBIBYTE)


@pytest.mark.parametrize(("check", "error"), [(fails, KeyError), (grows, AssertionError)])
def test_a_foreign_error_or_too_much_memory_is_seen(check, error):
    with pytest.raises(error):
        run(Target(st.none(), check, MEBIBYTE), None)


def test_the_long_run_counts_its_inputs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(program, "TARGETS", {"handler reply": TARGETS["handler reply"]})

    code = program.main(["--inputs", "30", "--output", str(tmp_path / "fuzz.json")])

    found = json.loads((tmp_path / "fuzz.json").read_text("utf-8"))
    assert code == 0
    assert found["targets"]["handler reply"]["inputs"] >= 30
    assert "handler reply" in capsys.readouterr().out


def test_the_long_run_fails_with_the_input_that_breaks_a_target(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(program, "TARGETS", {"broken": Target(st.just(7), fails, MEBIBYTE)})

    code = program.main(["--inputs", "5", "--output", str(tmp_path / "fuzz.json")])

    assert code == 1
    assert "broken: KeyError" in capsys.readouterr().out
