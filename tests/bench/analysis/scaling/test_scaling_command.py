"""`observatory suite scaling`: which suite run it takes, what it prints in each form, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import math
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from bench.analysis.scaling.curves import curves_of
from bench.analysis.scaling.report import print_scaling
from bench.cli import main
from bench.cli.suite.scaling import scaling
from bench.errors import FINE, MISUSE
from bench.results.estimate import estimate
from bench.store.history import History
from bench.store.suite_record import SuiteRecord
from bench.store.summary import Summary
from collectors.metrics.results import METRICS
from tests.bench.made.examples import make_case, make_machine
from tests.bench.made.scaled import SUITE_RUN, MadeEnd, ended, scaled_run, strong_runs, weak_runs

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def observatory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command, in a home of its own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def run(*words: str) -> tuple[int, str, str]:
        code = main.run(["suite", "scaling", *words])
        out, error = capsys.readouterr()
        return code, out, error

    return run


def _keep(*runs: Summary, suite_run: str = SUITE_RUN, suite: str = "night", started_ns: int = 1) -> None:
    """Put a suite run of these runs into the history."""
    with History() as history:
        for one in runs:
            history.add(one, make_machine())
        history.save_suite(
            SuiteRecord(
                id=suite_run, suite=suite, started_ns=started_ns, progress_ns=2, total=len(runs), folder="/nowhere"
            )
        )


def test_a_curve_is_printed_with_its_points_laws_and_losses(observatory: Run) -> None:
    _keep(*weak_runs())
    code, out, error = observatory("night")
    assert (code, error) == (FINE, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "weak: weak scaling of ddp, batch 4 a rank, cpu, fp32"
    assert lines[2] == "ranks mean step efficiency speed-up ideal"
    assert lines[3].startswith("1 100 ms [")
    assert " - 1 1" in lines[3]
    assert "83.3 % [" in lines[5]
    assert lines[5].endswith(" 4")
    assert any(line.startswith("Gustafson: serial fraction ") for line in lines)
    assert any(line.startswith("USL: contention sigma ") for line in lines)
    assert "lost of each step on 2 ranks on 4 ranks" in lines
    (communication,) = (line for line in lines if line.startswith("exposed communication"))
    assert communication.startswith("exposed communication 9.1 % [")
    assert not any(line.startswith("bubble") for line in lines)
    (whole,) = (line for line in lines if line.startswith("1 - efficiency"))
    assert whole.startswith("1 - efficiency 9.1 % [")
    assert lines[-1] == f"suite run {SUITE_RUN}; docs/guides/scaling.md defines each figure"


def test_a_fit_whose_interval_is_wider_than_its_value_is_called_unsure(observatory: Run) -> None:
    _keep(*weak_runs())
    lines = observatory("night")[1].splitlines()
    (gustafson,) = (line for line in lines if line.startswith("Gustafson: serial fraction "))
    assert gustafson.partition(";")[0].endswith(" (unsure)")
    assert any("unsure: the interval is wider than the value" in line for line in lines)


def test_it_takes_the_newest_run_unless_one_is_named(observatory: Run) -> None:
    other = [scaled_run(f"new[ranks={ranks}]", make_case(ranks=ranks, batch=8), 0.1) for ranks in (1, 2)]
    _keep(*weak_runs())
    assert "weak scaling" in observatory()[1]
    assert json.loads(observatory(SUITE_RUN[:15], "--format", "json")[1])["suite_run"] == SUITE_RUN
    _keep(*other, suite_run="20261124-010203-dawn-abc123", suite="dawn", started_ns=2)
    # The runs are the other suite run's by their own account, so that the new one has none.
    code, _, error = observatory()
    assert code == MISUSE
    assert "20261124-010203-dawn-abc123 has no scaling curve" in error
    assert "weak scaling" in observatory("night")[1]


def test_json_has_every_figure(observatory: Run) -> None:
    _keep(*weak_runs())
    found = json.loads(observatory("--format", "json")[1])
    (curve,) = found["curves"]
    assert (curve["scaling"], curve["base_ranks"]) == ("weak", 1)
    base, _, four = curve["points"]
    assert (base["efficiency_ratio"], base["loss"]) == (None, None)
    assert four["efficiency_ratio"]["value"] == pytest.approx(100 / 120)
    parts = four["loss"]["parts"]
    assert math.fsum(part["lost_ratio"] for part in parts.values()) == pytest.approx(20 / 120)
    assert parts["exposed_communication"]["lost_s"] == pytest.approx(0.020)
    assert four["loss"]["absent"] == {"data": "ddp on 1 has no time of the phase data, so it is in idle"}
    assert {fit["law"] for fit in curve["fits"]} == {"gustafson", "usl"}


def test_csv_has_a_row_for_each_figure(observatory: Run) -> None:
    _keep(*strong_runs())
    rows = list(csv.DictReader(io.StringIO(observatory("--format", "csv")[1])))
    (efficiency,) = (row for row in rows if row["figure"] == "efficiency_ratio" and row["ranks"] == "4")
    assert float(efficiency["value"]) == pytest.approx(1.0 / 1.3)
    (serial,) = (row for row in rows if (row["figure"], row["part"]) == ("amdahl", "serial_fraction"))
    assert float(serial["low"]) <= 0.1 <= float(serial["high"])
    (peak,) = (row for row in rows if (row["figure"], row["part"]) == ("usl", "peak_ranks"))
    assert (peak["value"], peak["reason"].partition(":")[0]) == ("", "no peak up to 4 ranks")
    assert "a law with 3 parameters fits 3 numbers of ranks exactly" in peak["reason"]


def test_the_example_of_the_help_works(observatory: Run) -> None:
    _keep(*weak_runs(), suite="scaling")
    assert scaling.help is not None
    (example,) = (line.strip() for line in scaling.help.splitlines() if line.strip().startswith("observatory "))
    words = shlex.split(example)
    assert words[:3] == ["observatory", "suite", "scaling"]
    assert observatory(*words[3:])[0] == FINE
    assert len(scaling.help.splitlines()[0]) <= 120


# What is absent is said, and fits a terminal


def _printed(ends: list[MadeEnd], width: int = 80) -> list[str]:
    written = io.StringIO()
    console: Console = Console(file=written, width=width, force_terminal=True)
    print_scaling(SUITE_RUN, curves_of(ends), "table", console)
    return Text.from_ansi(written.getvalue()).plain.splitlines()


def test_it_fits_a_terminal_of_80_columns() -> None:
    more = [scaled_run(f"weak[ranks={ranks}]", make_case(ranks=ranks, batch=4 * ranks), 0.13) for ranks in (8, 16, 32)]
    lines = _printed([*ended(*weak_runs(), *more, *strong_runs()), MadeEnd(name="weak[ranks=64]", outcome="skipped")])
    assert max(map(len, lines)) <= 80
    # Six columns of losses continue below, each block with the parts' names.
    assert sum(line.startswith("exposed communication") for line in lines) > 1


def test_a_point_that_failed_is_named() -> None:
    one, two, four = weak_runs()
    failed = MadeEnd(name=two.run, outcome="failed", reason="rank 1 was killed by SIGKILL in step 2", summary=two)
    lines = _printed([*ended(one, four), failed], width=200)
    assert "left out: weak[ranks=2]: failed: rank 1 was killed by SIGKILL in step 2" in lines
    assert "USL: absent: 3 numbers of ranks are needed for its 3 parameters, and there are 2" in lines


def test_parts_that_no_trace_tells_are_absent_with_the_reason() -> None:
    runs = [
        scaled_run(run.run, run.case, 0.1, estimates=tuple(one for one in run.estimates if "traced" not in one.metric))
        for run in weak_runs()
    ]
    (line,) = (
        line for line in _printed(ended(*runs), width=400) if line.startswith("not available: exposed communication")
    )
    assert line == (
        "not available: exposed communication, waiting, bubble, idle, copies, slower compute: no step of ddp on 1 was"
        " traced, so it is in unexplained; use trace_steps = 3"
    )


def test_one_trial_has_no_interval_and_says_so() -> None:
    by_name = {metric.name: metric for metric in METRICS}
    runs = [
        replace(
            run,
            estimates=tuple(estimate(by_name[one.metric], [one.median], **one.labels) for one in run.estimates[:2]),
        )
        for run in weak_runs()
    ]
    lines = _printed(ended(*runs), width=200)
    assert "intervals are absent: one trial has no interval" in lines
    assert "100 ms [" not in "\n".join(lines)
    assert any(line.startswith("USL: intervals are absent: a law with 3 parameters fits") for line in lines)


# What is refused


def test_without_any_suite_run_it_says_what_to_run(observatory: Run) -> None:
    code, out, error = observatory()
    assert (code, out) == (MISUSE, "")
    assert "no suite has run yet; `observatory suite run scaling` runs one" in error
    assert len(error.splitlines()) == 1


def test_an_unknown_suite_is_refused_with_what_is_known(observatory: Run) -> None:
    _keep(*weak_runs())
    code, out, error = observatory("evening")
    assert (code, out) == (MISUSE, "")
    assert f'suite or suite run "evening" is unknown; the newest are: {SUITE_RUN}' in error


def test_a_suite_without_a_sweep_of_ranks_is_refused_with_the_next_move(observatory: Run) -> None:
    _keep(weak_runs()[0])
    code, out, error = observatory("night")
    assert (code, out) == (MISUSE, "")
    assert f"suite run {SUITE_RUN} has no scaling curve: no two measured cases differ only in ranks" in error
    assert 'give a case ranks = [1, 2, 4] and scaling = "weak" or "strong"' in error
    assert len(error.splitlines()) == 1


def test_a_suite_whose_cases_failed_names_one(observatory: Run) -> None:
    one, two, _ = weak_runs()
    _keep(one, replace(two, outcome="failed"))
    code, _, error = observatory("night")
    assert code == MISUSE
    assert f"weak[ranks=2]: failed (`observatory suite show {SUITE_RUN}` shows all)" in error
