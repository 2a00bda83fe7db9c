"""Metric math, expression by expression."""

import pytest

from shardfleet_local.aws.metric_math import MetricMathError, MetricScope, as_series, evaluate

GRID = [0, 60, 120, 180]
SERIES = {
    "m1": {0: 1.0, 60: 2.0, 180: 4.0},
    "m2": {0: 10.0, 60: 0.0, 120: 30.0},
    "none": {},
}


def result(expression):
    scope = MetricScope(values=SERIES, grid=GRID, metrics=SERIES)
    return evaluate(expression, scope)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("2 ^ 3 - 1", 7),
        ("-2 + 5", 3),
        ("10 / 4", 2.5),
        ("3 > 2 AND 1 == 2", 0),
        ("3 > 2 OR 1 == 2", 1),
        ("1.5e2 != 150", 0),
        ("SUM(m1)", 7),
        ("MAX(m1) + MIN(m2)", 4),
        ("AVG(m1)", 7 / 3),
        ("PERIOD(m1)", 60),
        ("CEIL(1.2) + FLOOR(1.8) + ABS(-3)", 6),
    ],
)
def test_numbers(expression, expected):
    assert result(expression) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("m1", SERIES["m1"]),
        ("m1 * 2", {0: 2, 60: 4, 180: 8}),
        ("100 - m1", {0: 99, 60: 98, 180: 96}),
        ("m1 + m2", {0: 11, 60: 2}),
        ("m1 / m2", {0: 0.1}),
        ("m1 >= 2", {0: 0, 60: 1, 180: 1}),
        ("m1 > 1 && m2 > 0", {0: 0, 60: 0}),
        ("SUM([m1, m2])", {0: 11, 60: 2, 120: 30, 180: 4}),
        ("SUM(METRICS())", {0: 11, 60: 2, 120: 30, 180: 4}),
        ("MAX(METRICS('m'))", {0: 10, 60: 2, 120: 30, 180: 4}),
        ('AVG(METRICS("m2"))', {0: 10, 60: 0, 120: 30}),
        ("FILL(m1, 0)", {0: 1, 60: 2, 120: 0, 180: 4}),
        ("FILL(m1, REPEAT)", {0: 1, 60: 2, 120: 2, 180: 4}),
        ("FILL(m1, LINEAR)", {0: 1, 60: 2, 120: 3, 180: 4}),
        ("FILL(none, 0)", dict.fromkeys(GRID, 0)),
        ("FILL(m1, m2)", {0: 1, 60: 2, 120: 30, 180: 4}),
        ("IF(m1 > 1, m1, 0)", {0: 0, 60: 2, 180: 4}),
        ("IF(m1 > 1, m1)", {60: 2, 180: 4}),
        ("IF(m1 > 1, m2, m1)", {0: 1, 60: 0}),
        ("IF(1, m1, m2)", SERIES["m1"]),
        ("DIFF(m1)", {60: 1, 180: 2}),
        ("RATE(m1)", {60: 1 / 60, 180: 2 / 120}),
        ("RUNNING_SUM(m1)", {0: 1, 60: 3, 180: 7}),
        ("TIME_SERIES(3)", dict.fromkeys(GRID, 3)),
    ],
)
def test_series(expression, expected):
    assert result(expression) == pytest.approx(expected)


def test_a_function_of_an_array_gives_an_array():
    assert result("FILL(METRICS('m'), 0)") == [
        {0: 1, 60: 2, 120: 0, 180: 4},
        {0: 10, 60: 0, 120: 30, 180: 0},
    ]


def test_a_number_is_a_series_that_never_changes():
    assert as_series(5.0, GRID) == [dict.fromkeys(GRID, 5.0)]


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("m3 + 1", "'m3' is no id of a query"),
        ("SEARCH('x')", r"SEARCH\(\) is not supported here; supported are ABS, AVG"),
        ("m1 +", "'a value' was expected, not 'the end'"),
        ("(m1", r"'\)' was expected"),
        ("m1 m2", "'m2' is too much"),
        ("m1 $ m2", r"cannot read '\$ m2'"),
        ("SUM(m1, m2)", r"SUM\(\): wrong arguments"),
    ],
)
def test_what_cannot_be_read_is_said(expression, complaint):
    with pytest.raises(MetricMathError, match=complaint):
        result(expression)
