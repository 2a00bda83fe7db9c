"""Which log lines belong to a worker or a shard."""

import json

from shardfleet_ops.explain.log_lines import LogEvent, LogFilter

REPORT = "REPORT RequestId: r1\tDuration: 3.00 ms"


def engine(message, *, request="r1", slot="s1", **fields):
    common = {"level": "INFO", "message": message, "service": "shardfleet", "fleet": "clicks"}
    told = common | {"request_id": request, "slot_id": slot} | fields
    return json.dumps(told, separators=(",", ":"))


def lines(*messages, stream="a", **wanted):
    """Return what belongs of one stream, as (slot, text)."""
    chosen = LogFilter(**wanted)
    events = [LogEvent(at_ms=n, stream=stream, message=each) for n, each in enumerate(messages)]
    found = [line for event in events for line in chosen.take(event)]
    return [(line.slot_id, line.text) for line in (*found, *chosen.rest())]


TWO = (
    "START RequestId: r1 Version: 1",
    "imported by the first",
    engine("TurnBegun"),
    engine("LeaseAdopted", lease_key="shard-1"),
    "a print\n",
    '{"_aws": {}, "records": 3}',
    "END RequestId: r1",
    REPORT,
    "START RequestId: r2 Version: 1",
    engine("TurnBegun", request="r2", slot="s2"),
    "another print",
    "END RequestId: r2",
)


def test_what_a_handler_prints_is_its_workers_whose_invocation_runs():
    assert lines(*TWO, slot_id="s1") == [
        ("s1", "imported by the first"),
        ("s1", "INFO TurnBegun"),
        ("s1", "INFO LeaseAdopted lease_key=shard-1"),
        ("s1", "a print"),
        ("s1", REPORT),
    ]
    assert [text for _, text in lines(*TWO, slot_id="s2")] == ["INFO TurnBegun", "another print"]


def test_without_a_name_all_lines_but_metrics_and_lambdas_marks_are_shown():
    found = [text for _, text in lines(*TWO)]

    assert len(found) == 7
    assert not any(text.startswith(("START", "END", "{")) for text in found)


def test_a_shard_has_the_lines_that_name_it_and_the_prints_of_the_invocation_that_reads_it():
    more = (*TWO, engine("LeaseAdopted", request="r2", slot="s2", lease_key="shard-2"))

    assert lines(*more, shard_id="shard-1") == [
        ("s1", "INFO LeaseAdopted lease_key=shard-1"),
        ("s1", "a print"),
    ]


def test_what_is_said_before_any_invocation_or_by_one_without_a_word_is_nobodys():
    found = lines("ImportError: x", "START RequestId: r1 Version: 1", "Traceback")

    assert found == [("", "ImportError: x"), ("", "Traceback")]
    assert lines("START RequestId: r1 Version: 1", "Traceback", slot_id="s1") == []


def test_streams_are_kept_apart():
    chosen = LogFilter(slot_id="s1")
    one = LogEvent(at_ms=1, stream="a", message=engine("TurnBegun"))
    other = LogEvent(at_ms=2, stream="b", message="a print of nobody")

    assert [line.text for event in (one, other) for line in chosen.take(event)] == [
        "INFO TurnBegun"
    ]


def test_a_users_json_line_is_shown_as_it_is():
    line = '{"level": "INFO", "service": "shop", "message": "x"}'

    assert lines(line) == [("", line)]
