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


@pytest.mark.parametrize(
    "text", ["", "0", "0h", "-1h", "2 hours", "h", "1h2d", "nan", "inf", "9" * 30, "367d", "\u0662h"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no time; it may be such as 90s, 45m, 2h or 1h30m"):
        Duration().convert(text, None, None)
