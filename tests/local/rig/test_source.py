"""Reading the user's records: what is taken, and what each mistake is told."""

import io
import json
import sys

import pytest

from shardfleet.errors import ConfigurationError
from shardfleet_local.rig import source
from shardfleet_local.rig.source import click_stream, read_source


@pytest.fixture
def write(tmp_path):
    def to_file(content, name="clicks.jsonl"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return to_file


def refusal(file, key="who", **options):
    with pytest.raises(ConfigurationError) as caught:
        read_source(file, key, **options)
    return str(caught.value)


def test_json_lines_keep_their_text_and_their_line_numbers(write):
    found = read_source(write('{"who": "ä", "n": 1}\n\n{"n":2,"who":7}\n'), "who")

    assert [(r.number, r.key, r.data.decode()) for r in found.records] == [
        (1, "ä", '{"who": "ä", "n": 1}'),
        (3, "7", '{"n":2,"who":7}'),
    ]


def test_csv_rows_become_the_objects_that_they_mean(write):
    found = read_source(write('who,note\r\na,"x, y"\r\nb,\r\n', "clicks.csv"), "who")

    assert [(r.number, r.key, json.loads(r.data)) for r in found.records] == [
        (2, "a", {"who": "a", "note": "x, y"}),
        (3, "b", {"who": "b", "note": ""}),
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_field(write):
    assert read_source(write(b"\xef\xbb\xbfwho\na\n"), "who").records[0].key == "a"


def test_a_line_separator_inside_a_value_does_not_end_the_line(write):
    assert len(read_source(write('{"who": "a\u2028b"}\n'), "who").records) == 1


def test_standard_input_is_read(monkeypatch):
    class Stdin:
        buffer = io.BytesIO(b'{"who": 1}\n')

    monkeypatch.setattr(sys, "stdin", Stdin)

    assert read_source("-", "who").records[0].key == "1"


def test_without_a_key_every_line_is_a_key_of_its_own(write):
    keys = [r.key for r in read_source(write('{"a": 1}\n{"a": 1}\n'), None).records]

    assert keys == ["1", "2"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"who": 1}\nnonsense\n', "clicks.jsonl:2: no JSON: "),
        ('{"who": 1}\n[1]\n', "clicks.jsonl:2: no JSON object: '[1]'"),
        ('{"who": 1}\n{"name": 2}\n', "clicks.jsonl:2: no field 'who': it has name"),
        ('{"who": [1]}\n', "clicks.jsonl:1: field 'who' is no key: [1] found"),
        ('{"who": null}\n', "clicks.jsonl:1: field 'who' is no key: null found"),
        ('{"who": true}\n', "clicks.jsonl:1: field 'who' is no key: true found"),
        ('{"who": ""}\n', "clicks.jsonl:1: field 'who' is no key: a partition key has 0"),
        ("who,n\na,1\nb\n", "clicks.jsonl:3: wrong number of fields: 1, the header has 2"),
        ('{"who": "%s"}\n' % ("x" * 300), "has 300 characters"),
        ('{"who": 1, "x": "%s"}\n' % ("x" * 10 * 2**20), "clicks.jsonl:1: too large: 10,48"),
        (b'{"who": 1}\n{"who": "\xff"}\n', "clicks.jsonl:2: byte 0xff is no UTF-8"),
        ("", "clicks.jsonl: no record found in it"),
        ("who\n", "clicks.jsonl: no record found in it"),
    ],
)
def test_bad_input_is_one_message_with_file_and_line(write, content, message):
    assert message in refusal(write(content))


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path):
    assert "no such file" in refusal(str(tmp_path / "nothing"))
    assert "is a folder" in refusal(str(tmp_path))


def test_rejects_are_counted_by_reason_and_left_out(write):
    file = write('{"who": 1}\nbad\nworse\n{"name": 2}\n{"who": 3}\n')

    found = read_source(file, "who", rejects=True)

    assert [r.key for r in found.records] == ["1", "3"]
    assert found.rejects == {"no JSON": [2, 3], "no field 'who'": [4]}
    assert list(found.rejected()) == [
        "rejected lines, no JSON: 2 (line 2, 3)",
        "rejected lines, no field 'who': 1 (line 4)",
    ]


def test_of_many_rejects_the_first_are_named(write):
    found = read_source(write('{"who": 1}\n' + "bad\n" * 2_000), "who", rejects=True)

    assert list(found.rejected()) == [
        "rejected lines, no JSON: 2,000 (line 2, 3, 4, 5, 6 and 1,995 more)"
    ]


def test_a_key_may_lie_inside_of_objects(write):
    lines = '{"user": {"id": {"n": 7}}}\n{"user.id.n": "plain", "user": {"id": {"n": 8}}}\n'

    assert [r.key for r in read_source(write(lines), "user.id.n").records] == ["7", "plain"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"user": {"name": 1}}', "no field 'user.id.n': at 'id' it has name"),
        ('{"user": 1}', "no field 'user.id.n': at 'id' it has no fields"),
        ('{"user": {"id": {"n": {}}}}', "field 'user.id.n' is no key: {} found"),
    ],
)
def test_a_key_that_is_not_inside_is_told_by_its_place(write, line, message):
    assert f"clicks.jsonl:1: {message}" in refusal(write(line + "\n"), "user.id.n")


def test_a_record_of_ten_mebibytes_is_taken(write):
    line = '{"who": 1, "x": "' + "x" * (10 * 2**20 - 20) + '"}'  # One byte of key to come.

    found = read_source(write('{"who": 1}\n' + line + "\n"), "who")

    assert found.largest() == (2, 10 * 2**20)


def test_nothing_but_rejects_is_still_an_error(write):
    assert "(rejected: 1 no field 'who')" in refusal(write('{"a": 1}\n'), rejects=True)


def test_too_many_records_are_refused_with_advice(write, monkeypatch):
    monkeypatch.setattr(source, "RECORDS_MOST", 2)

    assert "3 records, at most 2 are taken; cut it first" in refusal(write('{"who": 1}\n' * 3))


def test_the_click_stream_is_the_same_for_the_same_seed_and_different_for_another():
    first, again, other = (click_stream(500, seed=seed).records for seed in (5, 5, 6))

    assert first == again
    assert first != other
    assert len({record.key for record in first}) > 50
    assert all(json.loads(record.data)["visitor"] == record.key for record in first)
