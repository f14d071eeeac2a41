"""A run is told first by what a person wants: few rows, few notes, and a way to all the others."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bench.case import ONE_RUN
from bench.report.format import WIDE_INTERVALS
from bench.report.run.run_rows import MOST_ROWS, all_rows, first_rows
from bench.report.run.summary import (
    MOST_NOTES,
    all_notes,
    first_notes,
    print_curve,
    print_history,
    print_run,
    print_summaries,
)
from bench.results.estimate import Estimate, estimate, estimate_share
from bench.store.scaling_baseline import curve_of
from bench.store.summary import Summary
from collectors.metrics import probes as probes_metrics
from collectors.metrics import results
from tests.bench.machine.doctor.runs import probe
from tests.bench.made.examples import make_case, make_summary
from tests.bench.made.fake_runs import ddp_summary

ABSENT = (
    "communication is absent: no communication kernels found; names seen: aten::mul",
    "MFU is absent: the peak of a CPU is unknown",
    "MFU against a measured ceiling is absent: no run is in the history; `observatory run matmul --ranks 2` makes one",
    "expected communication is absent: no sweep is there; `observatory run collectives --ranks 2` makes one",
    "the transfer's part of the bubble is absent, and is in unexplained: no sweep; `observatory run collectives"
    " --ranks 2` makes one",
)
INFORMATION = (
    "ranks 0, 1 are on host vm: they share a clock",
    "no straggler: rank 1 has 86 % of the lateness and is late in 2 of 3 trials, which may be chance",
)
WRONG = "rank 1 holds the others up by compute: it has 90 % of the lateness in traced steps"


def _times(scale: float = 1.0) -> tuple[float, ...]:
    return (scale, scale * 1.1, scale * 1.2)


def _full() -> Summary:
    """A run that has more figures than are shown first."""
    phases = ("data", "forward", "backward", "optimizer")
    found: tuple[Estimate, ...] = (
        estimate(results.RUN_STEP_SECONDS, _times()),
        estimate(results.RUN_MEAN_STEP_SECONDS, _times()),
        *(estimate(results.RUN_PHASE_SECONDS, _times(0.2), phase=phase) for phase in phases),
        estimate(results.RUN_TOKENS_PER_SECOND, _times(1e4)),
        estimate(results.RUN_TOKENS_PER_SECOND_PER_DEVICE, _times(5e3)),
        estimate(results.RUN_FLOPS, _times(1e10)),
        estimate(results.RUN_MFU, _times(0.3)),
        estimate(results.RUN_MEASURED_MFU, _times(0.4)),
        *(estimate(results.RUN_PEAK_MEMORY_BYTES, _times(1e9), account=name) for name in ("allocated", "reserved")),
        estimate(results.RUN_LOSS, _times(5.0)),
        estimate_share(results.RUN_TRACED_RATIO, [0.1, 0.2, 0.3], part="exposed_communication"),
        estimate_share(results.RUN_TRACED_RATIO, [0.1, 0.2, 0.3], part="idle"),
        estimate_share(results.RUN_WAITING_RATIO, [0.1, 0.2, 0.3]),
        estimate_share(results.RUN_STRAGGLER_RATIO, [0.1, 0.2, 0.3], rank="1", cause="compute"),
    )
    return make_summary(estimates=found, notes=(*ABSENT, *INFORMATION, WRONG))


def test_at_most_fifteen_rows_say_speed_step_memory_and_efficiency_first() -> None:
    titles = [row.title for row in first_rows([_full()])]
    assert len(titles) == MOST_ROWS
    wanted = ["ranks", "tokens/s", "median step", "mean step", "  of it forward", "exposed communication"]
    wanted += ["straggler rank 1 compute", "peak memory allocated", "weak scaling efficiency", "MFU, data sheet"]
    assert [title for title in titles if title in wanted] == wanted
    assert "loss, last step" not in titles


def test_what_is_left_of_fifteen_rows_is_filled() -> None:
    few = [row.title for row in first_rows([make_summary(estimates=(estimate(results.RUN_LOSS, _times()),))])]
    assert few == ["ranks", "effective batch", "weak scaling efficiency", "loss, last step"]


@pytest.mark.parametrize(("ranks", "words"), [(1, "4 = 4 local x 1 rank"), (2, "8 = 4 local x 2 ranks")])
def test_the_effective_batch_counts_its_ranks(ranks: int, words: str) -> None:
    batch = {"local": 4, "data_ranks": ranks, "total": 4 * ranks}
    (row,) = [row for row in all_rows([make_summary(effective_batch=batch)]) if row.title == "effective batch"]
    assert row.cells == (words,)


def test_every_row_of_before_is_among_the_details() -> None:
    shown = {row.title for row in all_rows([_full()])}
    assert {"traced idle", "model FLOP/s/device (PaLM)", "loss, last step", "  spread of steps"} <= shown


def test_an_efficiency_bears_its_interval_and_whether_its_baseline_was_beside_it() -> None:
    (far,) = [row for row in first_rows([make_summary()]) if "efficiency" in row.title]
    assert far.cells[0].startswith("90.1 % [")
    assert far.cells[0].endswith("], baseline measured at another time")
    near = tuple(replace(found, is_beside=True) for found in make_summary().scaling)
    (row,) = [row for row in first_rows([make_summary(scaling=near)]) if "efficiency" in row.title]
    assert row.cells[0].endswith("]")


def test_what_is_absent_is_one_line_and_what_would_tell_more_is_the_last() -> None:
    lines = first_notes([_full()])
    assert len(lines) <= MOST_NOTES
    assert lines[0] == WRONG
    (absent,) = [line for line in lines if line.startswith("not available: ")]
    assert absent == (
        "not available: communication, MFU, MFU against a measured ceiling, expected communication, transfer's part of"
        " the bubble; 2 more notes (`observatory show run-a --details`)"
    )
    assert lines[-1] == (
        "not measured yet: `observatory run matmul --ranks 2`, `observatory run collectives --ranks 2`"
    )


def test_a_rank_that_is_likely_a_straggler_is_named_at_the_end_of_a_run() -> None:
    likely = "straggler: likely rank 1, not certain: rank 1 has 90 % of the lateness"
    assert likely in first_notes([make_summary(notes=(*INFORMATION, likely))])


def test_no_note_is_lost_to_who_asks_for_details() -> None:
    lines = all_notes(_full())
    assert all(any(line.endswith(note) for line in lines) for note in (*ABSENT, *INFORMATION, WRONG))


def test_of_more_that_is_wrong_than_fits_the_rest_is_counted() -> None:
    lines = first_notes([make_summary(notes=tuple(f"GPU {gpu} was held back" for gpu in range(9)), scaling=())])
    assert len(lines) == MOST_NOTES
    assert lines[-1] == "6 more notes (`observatory show run-a --details`)"


def test_what_two_trials_tell_and_that_a_run_is_ad_hoc_stay_with_the_first_of_what_is_wrong() -> None:
    case = replace(make_case(), trials=2)
    far_apart = estimate(results.RUN_TOKENS_PER_SECOND, (1.0, 3.0))
    wrong = tuple(f"GPU {gpu} was held back" for gpu in range(9))
    run = make_summary(case=case, estimates=(far_apart,), notes=wrong, scaling=(), purpose=ONE_RUN)
    (row,) = [row for row in first_rows([run]) if row.title == "tokens/s"]
    assert row.cells == ("2.00",)
    lines = first_notes([run, replace(run, run="run-b")])
    assert len(lines) == MOST_NOTES
    assert lines[0] == "ddp on 2: GPU 0 was held back"
    assert lines[1] == WIDE_INTERVALS
    assert lines[2].startswith("ddp on 2: ad-hoc run (trials 2 instead of 3")
    assert lines[4] == "17 more notes (`observatory show RUN --details`)"
    details = all_notes(run)
    assert lines[2] in details


def test_what_is_absent_from_a_bubble_is_absent_and_not_wrong() -> None:
    note = "waiting for a core is absent from the bubble's parts, and is in unexplained: this system tells nobody"
    lines = first_notes([make_summary(notes=(note,), scaling=())])
    assert lines[1:] == ["not available: waiting for a core (`observatory show run-a --details`)"]


def test_of_several_runs_it_is_said_which_lack_what() -> None:
    single = make_summary("run-b", case=make_case("single", 1), notes=ABSENT[:2], scaling=())
    lines = first_notes([single, make_summary(notes=ABSENT[1:3], scaling=())])
    assert lines[1] == (
        "not available: communication (single on 1), MFU, MFU against a measured ceiling (ddp on 2)"
        " (`observatory show RUN --details`)"
    )


def test_every_absence_that_a_run_notes_is_understood(tmp_path: Path) -> None:
    """The notes of a judged run, and not those made up here."""
    notes = ddp_summary(tmp_path).notes
    lines = first_notes([ddp_summary(tmp_path)])
    told = [note for note in notes if " absent: " in note]
    assert told
    assert not any(note in line for note in told for line in lines)


@pytest.mark.parametrize("width", [80, 100])
def test_runs_stand_below_each_other_where_a_terminal_is_too_narrow(width: int) -> None:
    text = io.StringIO()
    console = Console(file=text, width=width, force_terminal=True, color_system=None)
    print_summaries([_full(), _full(), _full()], "table", console)
    table, _, _ = text.getvalue().partition("not available: ")
    lines = [line.rstrip() for line in table.splitlines()]
    assert all(len(line) <= width for line in lines)
    rows = [line for line in lines if line.startswith("tokens/s ")]
    assert "".join(rows).count("11,000 [") == 3
    assert len(rows) > 1


@pytest.mark.parametrize(("names", "each"), [(2, 7), (5, 3), (9, 1)])
def test_of_a_long_sweep_some_sizes_are_shown_with_both_ends_and_the_rest_is_counted(names: int, each: int) -> None:
    collectives = [f"all_{letter}" for letter in "abcdefghi"[:names]]
    powers = range(10, 20)
    sweep = [
        estimate(
            probes_metrics.RUN_COLLECTIVE_SECONDS, _times(), collective=name, algorithm="library", size=str(2**power)
        )
        for name in collectives
        for power in powers
    ]
    text = io.StringIO()
    run = probe("run-a", "collectives", *sweep)
    print_summaries([run], "table", Console(file=text, width=100))
    rows = [line.split()[:2] for line in text.getvalue().splitlines() if line.startswith("all_")]
    assert len(rows) == names * each
    for name in collectives:
        sizes = [int(size) for of, size in rows if of == name]
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == 2**19
        assert each == 1 or sizes[0] == 2**10
    hidden = 10 * names - len(rows)
    assert f"{hidden} more sizes: `observatory show run-a --details`" in text.getvalue()
    print_summaries([run], "table", Console(file=text, width=100), has_details=True)
    assert len([line for line in text.getvalue().splitlines() if line.startswith("all_")]) == len(rows) + 10 * names


def test_names_stand_in_the_first_view_the_list_and_a_curve_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    run = replace(
        make_summary("[red]run", notes=("[/nothing] was held back by \x1b[31mnobody",), scaling=()),
        hardware="[bold]CPU :smile:",
    )
    print_run(run, "table")
    print_history([run], "table")
    print_curve(curve_of([run, run]))
    said = capsys.readouterr().out
    assert "run      [red]run: done" in said
    assert "[/nothing] was held back by ?[31mnobody" in said
    assert "on [bold]CPU :smile:; torch" in said
    assert said.count("[red]run") == 3
    assert "\x1b" not in said
