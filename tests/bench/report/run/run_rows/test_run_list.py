"""The list of runs keeps whole words at any width: it leaves columns out, and says which."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from bench.case import Purpose, SuiteMember
from bench.report.run.run_rows import headline, print_list
from bench.results.estimate import estimate
from collectors.metrics.results import RUN_TOKENS_PER_SECOND
from tests.bench.made.examples import make_case, make_summary
from workloads.cost_models.shape import PRESETS

FAST = estimate(RUN_TOKENS_PER_SECOND, (15_138.0, 15_901.0, 16_544.0))
RUNS = [
    make_summary("20261122-022743-ddp-aa1c07", estimates=(FAST,)),
    make_summary("20261122-022743-parameter_server-9128e1", outcome="interrupted", estimates=()),
]


def _printed(width: int, *, is_terminal: bool = True) -> list[str]:
    text = io.StringIO()
    print_list(RUNS, Console(file=text, width=width, force_terminal=is_terminal, color_system=None))
    return [line.rstrip() for line in text.getvalue().splitlines()]


@pytest.mark.parametrize("width", [200, 120, 100, 80, 60])
def test_a_terminal_gets_a_line_a_run_that_fits_with_every_cell_whole(width: int) -> None:
    heading, done, interrupted, *told = _printed(width)
    assert all(len(line) <= width for line in (heading, done, interrupted))
    assert done.split()[0] == RUNS[0].run
    assert interrupted.split()[0] == RUNS[1].run
    assert "15,901" in done
    shown = heading.split()
    hidden = {"started", "ranks", "device", "precision", "batch", "outcome"} - set(shown)
    assert all(name in " ".join(told) for name in hidden)
    assert bool(told) == (width < 200)


def test_at_eighty_letters_ranks_result_and_outcome_are_still_there() -> None:
    heading, done, *_ = _printed(80)
    assert heading.split() == ["run", "ranks", "result", "outcome"]
    assert done.split()[1:] == ["2", "15,901", "tokens/s", "done"]


def test_the_interval_is_kept_as_long_as_it_fits() -> None:
    assert headline(RUNS[0]) in _printed(120)[1]
    assert "[" in headline(RUNS[0])


def test_a_pipe_gets_all_columns_however_narrow_it_says_it_is() -> None:
    heading, *_ = _printed(40, is_terminal=False)
    columns = ["run", "started", "ranks", "device", "precision", "batch", "result", "outcome", "settings"]
    assert heading.split() == columns


def test_runs_of_one_strategy_are_told_apart_by_their_settings() -> None:
    case = make_case("ddp", model=PRESETS["tiny"], options={"bucket_mb": 1.0})
    member = SuiteMember(suite="smoke", id="20261122-022743-smoke-aa1c07", case="ddp", is_rerun=True)
    runs = [
        make_summary("a", case=case),
        make_summary("b", case=case, drill="kill@1:7"),
        make_summary("c", case=replace(case, model=replace(case.shape, width=256)), purpose=Purpose(member=member)),
    ]
    text = io.StringIO()
    print_list(runs, Console(file=text, width=200, force_terminal=False))
    settings = [set(line.partition("done")[2].split()) for line in text.getvalue().splitlines()[1:4]]
    assert "bucket_mb=1" in settings[0]
    assert settings[1] - settings[0] == {"drill=kill@1:7"}
    assert settings[2] - settings[0] == {"width=256", "suite=smoke", "rerun"}


def test_settings_are_shortened_to_a_terminal_before_other_columns_go() -> None:
    run = make_summary("20261122-022743-ddp-aa1c07", estimates=(FAST,))
    text = io.StringIO()
    print_list([run], Console(file=text, width=80, force_terminal=True, color_system=None))
    heading, line, *_ = text.getvalue().splitlines()
    assert heading.split() == ["run", "ranks", "result", "outcome", "settings"]
    assert len(line.rstrip()) <= 80
    assert line.rstrip().endswith("...")
