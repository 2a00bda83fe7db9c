"""The examples of docs/testing.md do what the page says."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
EXAMPLE = re.compile(r"```python\n# (test_\w+\.py)\n(.*?)```", re.DOTALL)


@pytest.fixture
def run_example(pytester, monkeypatch):
    """Run one of the page's files in a pytest of its own, as a reader would."""
    # On a build server pytest repeats each failure's whole message in its summary.
    for told_by in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(told_by, raising=False)

    def run(name, *arguments):
        examples = dict(EXAMPLE.findall(PAGE.read_text("utf-8")))
        pytester.path.joinpath(name).write_text(examples[name], "utf-8")
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments, timeout=500)

    return run


def test_the_counter_that_counts_a_repeated_record_twice_is_found_and_told(run_example):
    result = run_example("test_views.py")

    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert re.search(r"'visitor-\d' is \d+, without faults it is \d+", text)
    told = re.search(r"(s\d+#\d+) had changed it .* for records (\S+)( to \S+)? of", text)
    assert told, text
    assert text.count(f"{told[2].split(':')[0]}") > 1
    assert len(text.splitlines()) < 60
    again = re.search(r"again: pytest '(\S+)' (--fleet-seed=\d --fleet-only=\S*)", text)
    assert again, text
    assert again[1].endswith("test_views.py::test_views_are_counted")

    result = run_example("test_views.py", *again[2].split())

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*EffectsAsWithoutFaults*"])


def test_the_counter_that_remembers_positions_passes(run_example):
    run_example("test_views_fixed.py").assert_outcomes(passed=1)
