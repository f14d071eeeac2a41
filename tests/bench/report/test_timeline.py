"""A drawn step says by its text alone what ran when."""

from __future__ import annotations

import io

from rich.console import Console

from bench.report.run.pipeline import print_timeline
from bench.results.pipeline import TimedStep
from tests.bench.results.pipeline.staged import GPIPE, PARTED, Row, timed_step


def _drawn(step: TimedStep, width: int, ranks: int = 2, *, colours: bool = False) -> list[str]:
    text = io.StringIO()
    console = Console(file=text, width=width, force_terminal=colours, color_system="standard" if colours else None)
    print_timeline(step, [tuple(range(ranks))], console)
    return text.getvalue().splitlines()


def test_each_rank_has_a_row_and_each_action_a_box_as_long_as_it_lasted() -> None:
    upper, lower, *_ = _drawn(timed_step(GPIPE), width=8 + 27 + 1)
    assert upper == "rank 0 |F0-F1-         B0====B1====|"
    assert lower == "rank 1 |   F0-F1-B0====B1====      |"


def test_the_lines_below_say_what_letters_and_columns_mean() -> None:
    _, _, *below = _drawn(timed_step(GPIPE), width=80)
    assert below == [
        "F forward, B backward; the number is the microbatch; blank is idle",
        "step 9 of trial 0: 9.00 ms, a column is 0.127 ms; bubble 33.3 %",
    ]


def test_a_ranks_stages_are_told_apart_by_letters() -> None:
    upper, lower, meaning, _ = _drawn(timed_step(PARTED), width=8 + 40 + 1)
    assert upper == "rank 0 |F0a-    F0b-        I0b=    I0a=W0b~W0a~|"
    assert lower == "rank 1 |    F0a-    F0b-I0b=    I0a=W0b~W0a~    |"
    assert "I backward of inputs, W backward of weights" in meaning
    assert "a, b, ...: the rank's first stage, its second" in meaning


def test_a_number_that_does_not_fit_is_left_out_whole() -> None:
    row: Row = [("forward", 0, 10, 0, 2), ("forward", 0, 11, 2, 5)]
    (drawn, *_) = _drawn(timed_step([row]), width=8 + 5 + 1, ranks=1)
    assert drawn == "rank 0 |F-F11|"


def test_what_is_too_narrow_to_draw_is_counted() -> None:
    row: Row = [("forward", 0, 0, 0, 1), ("backward", 0, 0, 1, 1000)]
    lines = _drawn(timed_step([row]), width=80, ranks=1)
    assert lines[-1] == "not drawn: 1 action narrower than half a column; the trace file has all"


def test_rows_of_eighty_columns_are_never_folded() -> None:
    many: list[Row] = [[("forward", rank, 0, rank, rank + 1)] for rank in range(12)]
    rows = _drawn(timed_step(many), width=80, ranks=12)[:12]
    assert {len(row) for row in rows} == {80}
    assert [row.index("F") for row in rows] == sorted(row.index("F") for row in rows)


def test_colours_are_for_terminals_only() -> None:
    assert not any("\x1b" in line for line in _drawn(timed_step(GPIPE), width=80))
    assert any("\x1b[" in line for line in _drawn(timed_step(GPIPE), width=80, colours=True))


def test_clocks_that_cannot_be_compared_are_said() -> None:
    assert "several clocks" in _drawn(timed_step(GPIPE, clock=None), width=80)[-1]
