"""
Files as people have them: each is read right, or refused with its line and what to do about it.

What is expected was counted by hand, or is what the file was made of.
"""

import bz2
import csv
import gzip
import io
import itertools
import json
import lzma

import pytest
import zstandard

from shardfleet.errors import ConfigurationError
from shardfleet_local.input import packed
from shardfleet_local.rig.source import read_source
from shardfleet_ops.cli import app as application

LINES = '{"who": "a", "n": 1}\n{"who": "b", "n": 2}\n'
BOTH = [("a", {"who": "a", "n": 1}), ("b", {"who": "b", "n": 2})]
TEXTS = [("a", {"who": "a", "n": "1"}), ("b", {"who": "b", "n": "2"})]
PACK = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}
PACK["zstd"] = zstandard.ZstdCompressor(write_checksum=True).compress

READ = {
    "gzip": (gzip.compress(LINES.encode()), BOTH),
    "gzip, two members": (b"".join(map(gzip.compress, LINES.encode().splitlines(True))), BOTH),
    "gzip, filled up with zeros": (gzip.compress(LINES.encode()) + b"\0" * 512, BOTH),
    "zstd": (PACK["zstd"](LINES.encode()), BOTH),
    "zstd, two frames": (b"".join(map(PACK["zstd"], LINES.encode().splitlines(True))), BOTH),
    "JSON array": (json.dumps([fields for _, fields in BOTH]), BOTH),
    "JSON array over many lines": (json.dumps([fields for _, fields in BOTH], indent=2), BOTH),
    "UTF-8 with a mark": (LINES.encode("utf-8-sig"), BOTH),
    "UTF-16 with a mark": (LINES.encode("utf-16"), BOTH),
    "UTF-16 with a mark, packed": (gzip.compress(LINES.encode("utf-16")), BOTH),
    "CRLF": (LINES.replace("\n", "\r\n"), BOTH),
    "lines that CR ends": (LINES.replace("\n", "\r"), BOTH),
    "no newline at the end": (LINES.rstrip(), BOTH),
    "CSV": ("who,n\na,1\nb,2\n", TEXTS),
    "CSV with ;": ("who;n\na;1\nb;2\n", TEXTS),
    "CSV with a tab": ("who\tn\na\t1\nb\t2\n", TEXTS),
    "CSV with |": ("who|n\na|1\nb|2\n", TEXTS),
    "CSV with CRLF": ("who,n\r\na,1\r\n\r\nb,2\r\n", TEXTS),
    "CSV that CR ends": ("who,n\ra,1\rb,2\r", TEXTS),
    "CSV of a spreadsheet": ("sep=;\r\nwho;n\r\na;1\r\nb;2\r\n".encode("utf-16"), TEXTS),
    "decimal commas": ("who;n\na;1,5\n", [("a", {"who": "a", "n": "1,5"})]),
    "quoted newlines": ('who;n\na;"1\n2"\n', [("a", {"who": "a", "n": "1\n2"})]),
    "a header of one column that is the key": ("who\na\nb\n", [(k, {"who": k}) for k in "ab"]),
    "two delimiters, and the key tells": ("who,x;y\na,1;2\n", [("a", {"who": "a", "x;y": "1;2"})]),
    "a field of 200 KB": (f"who,n\na,{'x' * 200_000}\n", [("a", {"who": "a", "n": "x" * 200_000})]),
    "leading zeros": ("who,n\n007,1\n", [("007", {"who": "007", "n": "1"})]),
}
# What is refused: the file, the key, what else is given, and what is said.
REFUSED = {
    "empty": (b"", "who", {}, ["input: no record found in it", "JSON objects"]),
    "blank": (" \n\n", "who", {}, ["input: no record found in it"]),
    "empty array": ("[]", "who", {}, ["input: no record found in it"]),
    "gzip cut off": (gzip.compress(LINES.encode())[:-4], "who", {}, ["input:3: its gzip is cut"]),
    "gzip of nothing": (gzip.compress(b""), "who", {}, ["input: no record found in it"]),
    "gzip spoiled": (
        gzip.compress(LINES.encode())[:-8] + b"\1" * 8,
        "who",
        {},
        ["its gzip is spoiled", "get the file again"],
    ),
    "gzip, garbage behind": (gzip.compress(LINES.encode()) + b"x", None, {}, ["input:3: behind"]),
    "zstd cut off": (PACK["zstd"](LINES.encode())[:-3], "who", {}, ["its zstd is cut off there"]),
    "xz cut off": (lzma.compress(LINES.encode())[:-9], "who", {}, ["input:3: its xz is cut off"]),
    "zip": (b"PK\x03\x04\x14\0", "who", {}, ["input: it is a zip archive", "unpack it"]),
    "Parquet": (b"PAR1\x15\x04PAR1", "who", {}, ["it is Parquet: write it as JSON lines"]),
    "UTF-16 without a mark": (LINES.encode("utf-16-le"), None, {}, ["iconv -f UTF-16LE -t UTF-8"]),
    "UTF-16 cut off": (LINES.encode("utf-16")[:-1], "who", {}, ["input:2: byte 0x0a is no UTF-16"]),
    "Latin-1": ("who,n\nä,1\n".encode("latin-1"), "who", {}, ["input:2: byte 0xe4 is no UTF-8"]),
    "a broken line": (LINES + '{"who": "c"\n', "who", {}, ["input:3: no JSON", "--rejects"]),
    "a first line that is cut off": ('o": "a", "n": 1}\n' + LINES, None, {}, ["input:1: no JSON"]),
    "two objects in a line": ('{"who": 1}{"who": 2}\n', None, {}, ["input:1: no JSON: Extra data"]),
    "an object over lines": ('{\n"who": 1\n}\n', None, {}, ["input:1: no JSON"]),
    "zeros behind": (LINES.encode() + b"\0\0\0", "who", {}, ["input:3: no JSON"]),
    "array cut off": ('[{"who": 1},\n{"who": 2}\n', "who", {}, ["input:3", "cut off or broken"]),
    "array with a comma too many": ('[{"who": 1},\n]', "who", {}, ["input:2: item 2 of its JSON"]),
    "array, garbage behind": ('[{"who": 1}]\nx', "who", {}, ["input:1: something stands behind"]),
    "array of numbers": ("[\n1]", None, {}, ["input:2: item 1: no JSON object", "--rejects"]),
    "two arrays": ('[{"who": 1}]\n[{"who": 2}]\n', "who", {}, ["something stands behind the end"]),
    "a doubled header": ("who,n,n\na,1,2\n", "who", {}, ["input:1: column 'n' is there more than"]),
    "one column": ("who\na\n", None, {}, ["input:1: neither", "--delimiter", "--key"]),
    "another delimiter": ("who^n\na^1\n", "who", {}, ["input:1: neither", "--delimiter"]),
    "two delimiters": ("who,x;y\na,1;2\n", None, {}, ["input:1:", "a comma or a semicolon"]),
    "no header": (
        "a,1\nb,2\n",
        None,
        {},
        ["input:1: '1' for a column's name: a header is missing"],
    ),
    "two files": ("who,n\na,1\nwho,n\nb,2\n", None, {}, ["input:3: the header again"]),
    "a short row": ("who,n\na,1\nb\n", None, {}, ["input:3: wrong number of fields: 1"]),
    "a long row": ("who,n\na,1,2\n", "who", {}, ["input:2: wrong number of fields: 3"]),
    "an open quote": ('who,n\na,1\nb,"2\nc,3\n', None, {}, ["input:3: neither", "a quote that is"]),
    "NUL bytes": (b"who,n\na,1\nb,\0\n", "who", {}, ["input:3: no text: a NUL byte"]),
    "NUL bytes in the header": (b"who,n\0\na,1\n", "who", {}, ["input:1: a NUL byte"]),
    "an empty value of the key": ("who,n\n,1\n", "who", {}, ["input:2: field 'who' is no key"]),
    "an empty key": (LINES, "", {}, ["--key is empty: name a field, or leave it out"]),
    "no such delimiter": ("who,n\n", None, {"delimiter": "ab"}, ["--delimiter 'ab': one char"]),
    "JSON with a delimiter": (LINES, None, {"delimiter": ";"}, ["--delimiter is for CSV"]),
}


@pytest.fixture
def write(tmp_path):
    def to_file(content):
        (tmp_path / "input").write_bytes(
            content if isinstance(content, bytes) else content.encode()
        )
        return str(tmp_path / "input")

    return to_file


def read(file, key="who", **options):
    found = read_source(file, key, **options)
    return [(each.key, json.loads(each.data)) for each in found.records]


@pytest.mark.parametrize("kind", READ)
def test_a_kind_of_input_is_read_right(write, kind):
    content, expected = READ[kind]

    assert read(write(content)) == expected


@pytest.mark.parametrize("kind", REFUSED)
def test_a_kind_of_input_is_refused_with_its_line_and_a_cure(write, kind):
    content, key, options, words = REFUSED[kind]
    with pytest.raises(ConfigurationError) as caught:
        read_source(write(content), key, **options)

    said = str(caught.value)
    assert [word for word in words if word not in said] == [], said
    assert said.isprintable()


@pytest.mark.parametrize(
    ("given", "between"), [("tab", "\t"), ("\\t", "\t"), ("^", "^"), (":", ":")]
)
def test_a_delimiter_that_is_named_is_taken(write, given, between):
    text = f"who,x;y{between}n\na{between}1\n"

    assert read(write(text), None, delimiter=given) == [("2", {"who,x;y": "a", "n": "1"})]


def test_an_item_keeps_its_text_but_for_its_line_breaks(write):
    found = read_source(write('[ {"who": 1.50,\r\n   "n": "a  b"} ]'), "who")

    assert [each.data for each in found.records] == [b'{"who": 1.50,"n": "a  b"}']


def test_what_unpacks_to_more_than_memory_may_hold_is_refused(write, monkeypatch):
    monkeypatch.setattr(packed, "BYTES_MOST", 2**20)
    for pack in PACK.values():
        with pytest.raises(ConfigurationError, match="more than 1 MiB unpacked"):
            read_source(write(pack(b"{}\n" * 2**20)), None)
    with pytest.raises(ConfigurationError, match="more than 1 MiB, which"):
        read_source("/dev/zero", None)


RECORDS = [
    {"who": f"k{number % 3}", "n": text}
    for number, text in enumerate(
        ["", "a,b", "c;d|e\tf", 'say "hi"', "ä\u2028ö", "x\ny", "{}", "\ufeff"]
    )
]
WRITTEN = {
    "lines": lambda: "".join(json.dumps(each) + "\n" for each in RECORDS),
    "plain lines": lambda: "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in RECORDS),
    "array": lambda: json.dumps(RECORDS),
    "indented": lambda: json.dumps(RECORDS, indent=1, ensure_ascii=False),
    **{
        f"CSV {between!r} {quoting}": lambda b=between, q=quoting: as_csv(b, q)
        for between, quoting in itertools.product(",;\t|", (csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    },
}


def as_csv(between, quoting):
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, ["who", "n"], delimiter=between, quoting=quoting)
    writer.writeheader()
    writer.writerows(RECORDS)
    return out.getvalue()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("written", WRITTEN)
def test_the_same_records_come_out_however_they_are_written_and_packed(write, written, encoding):
    data = WRITTEN[written]().encode(encoding)
    for pack in (bytes, *PACK.values()):
        assert [fields for _, fields in read(write(pack(data)))] == RECORDS


@pytest.mark.parametrize(
    "command",
    [
        ["put", "--dry-run"],
        ["local", "run", "--handler", "shop:handle"],
        ["demo"],
    ],
)
@pytest.mark.parametrize("kind", ["an open quote", "gzip cut off", "two files"])
def test_every_command_that_takes_a_file_reads_it_by_the_same_rules(write, capsys, command, kind):
    content, _, _, words = REFUSED[kind]
    code = application.run([*command, "--input", write(content), "--key", "who"])

    said = capsys.readouterr().err
    assert code == 2
    assert words[0] in said
    assert application.run([*command, "--input", write(LINES), "--key", ""]) == 2
    assert "--key is empty" in capsys.readouterr().err
