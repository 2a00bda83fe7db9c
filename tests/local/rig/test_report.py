"""The report and the result: self-contained, complete, and honest about a bad run."""

import dataclasses
import json
from html.parser import HTMLParser

import pytest

from shardfleet_local.pages.parts import nice_ceiling
from shardfleet_local.rig.outcome import result_of, write_result
from shardfleet_local.rig.picture import picture_of
from shardfleet_local.rig.report import report_of
from tests.local.rig.builders import an_outcome, shard_id


@pytest.fixture(scope="module")
def good():
    return an_outcome()


@pytest.fixture(scope="module")
def bad():
    return an_outcome(lose=(5, 17), rejects={"no JSON": (2, 3, 9)})


class Reader(HTMLParser):
    """Checks that tags nest, and gathers texts and references to elsewhere."""

    def __init__(self):
        super().__init__()
        self.open, self.texts, self.references, self.tags = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.references += [v for k, v in attributes if k in ("src", "href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def read(outcome):
    return read_text(report_of(outcome))


def read_text(text):
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


def test_a_report_needs_nothing_from_elsewhere(good):
    reader = read(good)

    assert reader.references == []
    assert "script" not in reader.tags
    assert reader.tags.count("svg") == 2


def test_a_good_run_says_so_first_and_tells_what_was_done(good):
    text = " ".join(read(good).texts)

    assert "Nothing was lost, and every key kept its order." in text
    assert "a worker was killed 4 times, the manager once" in text
    assert "resharded twice" in text
    for happening in good.happenings:
        assert happening.text in text


def test_a_bad_run_names_what_was_lost(bad):
    text = " ".join(read(bad).texts)

    assert "A promise was broken." in text
    assert "2 records were never handled: 5, 17" in text
    assert "3 lines of the input were rejected" in text


def test_a_picture_stands_alone_and_says_what_came_of_the_run(good, bad):
    picture = read_text(picture_of(good))
    text = " ".join(picture.texts)

    assert picture.references == []
    assert picture.tags.count("svg") == 1
    handled = f"{good.verdict.records_in:,} of {good.verdict.records_in:,} records handled"
    assert f"{handled}, 0 lost, 0 out of order" in text
    for happening in good.happenings:
        assert happening.text in text
    assert "2 lost" in " ".join(read_text(picture_of(bad)).texts)
    assert 'class="first bad"' in picture_of(bad)


def test_a_run_of_which_nothing_was_handled_can_be_reported(good):
    read(an_outcome(seconds=1))
    read_text(picture_of(an_outcome(seconds=1)))


def test_the_result_has_every_field_that_is_promised(good, tmp_path):
    write_result(good, tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())

    assert {
        "records_in",
        "records_handled_distinct",
        "duplicates",
        "lost",
        "out_of_order_per_key",
        "parents_before_children",
        "crash_recovery_seconds",
        "reshards",
        "workers_started",
        "template_sha256",
        "wall_seconds",
    } <= result.keys()
    assert result["passed"] is True
    assert result["lost"] == result["out_of_order_per_key"] == 0
    assert result["parents_before_children"] is True
    assert len(result["crash_recovery_seconds"]) == 8
    assert all(2 < seconds < 3 for seconds in result["crash_recovery_seconds"])


def test_the_result_of_a_bad_run_counts_what_is_lost(bad):
    assert result_of(bad)["passed"] is False
    assert result_of(bad)["lost"] == 2


def test_a_lease_in_the_wrong_state_breaks_a_promise(good):
    wrong = dataclasses.replace(good, unsettled={shard_id(0): "its lease stands at 5"})

    assert not wrong.passed
    assert wrong.problems() == [f"{shard_id(0)}: its lease stands at 5"]


@pytest.mark.parametrize(
    ("value", "end"), [(1, 1), (3, 4), (218, 400), (5.5, 6), (760, 800), (1000, 1000)]
)
def test_an_axis_ends_at_a_number_whose_quarters_are_round(value, end):
    assert nice_ceiling(value) == end
