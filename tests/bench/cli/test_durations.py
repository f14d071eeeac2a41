"""Times on a command line: as people write them, above 0 and below a year."""

from __future__ import annotations

import click
import pytest

from bench.cli.options import Duration


@pytest.mark.parametrize(
    ("text", "elapsed_s"),
    [
        ("90", 90),
        ("90s", 90),
        ("0.5", 0.5),
        ("45m", 2700),
        ("2h", 7200),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("1d2h3m4s", 93784),
    ],
)
def test_a_time_is_read_in_its_units(text: str, elapsed_s: float) -> None:
    assert Duration().convert(text, None, None) == elapsed_s


@pytest.mark.parametrize("text", ["", "-1h", "2 hours", "h", "1h2d", "nan", "inf", "\u0662h"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a time; use for example 90s, 45m, 2h or 1h30m"):
        Duration().convert(text, None, None)


@pytest.mark.parametrize(("text", "what"), [("0", "short"), ("0h", "short"), ("367d", "long"), ("9" * 30, "long")])
def test_a_time_that_is_none_of_ours_is_refused_with_its_limits(text: str, what: str) -> None:
    with pytest.raises(click.BadParameter, match=f"is too {what}; it must be above 0 and at most a year"):
        Duration().convert(text, None, None)
