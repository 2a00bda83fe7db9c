"""The report: whole, in cells, and without the account."""

import json

from shardfleet_local.acceptance.plan import SHORT
from shardfleet_local.acceptance.report import (
    HIDDEN,
    AcceptanceReport,
    Measured,
    ReportPart,
    Shown,
    StepRow,
)

ACCOUNT = "111122223333"


def a_report(*rows, hidden=ACCOUNT):
    return AcceptanceReport(
        name="shardfleet-acceptance-0a1b2c",
        where="AWS, us-east-1",
        version="1.0",
        began="2026-11-22T00:00:00+00:00",
        size=SHORT,
        rows=rows,
        hidden=hidden,
    )


def a_row(shown, text):
    return StepRow(
        ReportPart("destroy", "does", "promises", "docs/cli.md"),
        Measured(shown, text, {"bucket": text}),
        1_500,
    )


def test_the_account_is_named_only_where_that_is_asked_for(tmp_path):
    row = a_row(Shown.FAILED, f"bucket shardfleet-acceptance-0a1b2c-{ACCOUNT}-us-east-1")

    page, document = a_report(row).write(tmp_path)
    for file in (page, document):
        assert ACCOUNT not in file.read_text("utf-8")
        assert HIDDEN in file.read_text("utf-8")

    for file in a_report(row, hidden="").write(tmp_path):
        assert ACCOUNT in file.read_text("utf-8")


def test_a_text_with_bars_and_line_breaks_stays_in_its_cell(tmp_path):
    page, _ = a_report(a_row(Shown.PASSED, "one | two\nthree")).write(tmp_path)

    row = page.read_text("utf-8").splitlines()[-1]
    assert r"| one \| two three | passed | 1.5 |" in row


def test_one_row_that_failed_fails_the_report_and_one_not_shown_does_not(tmp_path):
    kept, unclear = a_row(Shown.PASSED, "text"), a_row(Shown.NOT_SHOWN, "text")
    broken = a_row(Shown.FAILED, "text")

    for rows, passed in (((kept, unclear), True), ((kept, broken), False)):
        page, document = a_report(*rows).write(tmp_path)
        assert json.loads(document.read_text("utf-8"))["passed"] is passed
        title = page.read_text("utf-8").splitlines()[0]
        assert title == f"# Acceptance: {'passed' if passed else 'FAILED'}"
