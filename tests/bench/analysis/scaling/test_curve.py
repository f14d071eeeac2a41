"""One command measures several numbers of ranks: each its own run, and a table of their efficiency at the end."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bench.cli import main
from bench.errors import FINE, MISUSE
from bench.report.run.summary import all_notes, print_curve, print_curve_json, print_summaries
from bench.session.persist import PersistedRuns, persist
from bench.store.history import History
from bench.store.scaling_baseline import curve_of
from tests.bench.made.examples import SMALL as SMALL_MODEL
from tests.bench.made.examples import make_machine
from tests.bench.made.fake_engine import FakeEngine
from tests.bench.made.fake_runs import CAUSE, DDP, DDP_STEPS_S, SINGLE, SINGLE_STEPS_S, measure_fake

ONE, TWO = replace(DDP, ranks=1), DDP
SMALL = ["--layers=2", "--width=16", "--heads=2", "--kv-heads=1", "--mlp-width=32", "--sequence=8"]
QUICK = ["--trials=1", "--steps=3", "--warm-up=1", "--trace-steps=0", "--device=cpu", "--port=0"]


def _printed(points: object) -> list[str]:
    text = io.StringIO()
    print_curve(points, Console(file=text, width=100))  # type: ignore[arg-type]
    return [" ".join(line.split()) for line in text.getvalue().splitlines() if line]


def test_efficiency_is_the_rate_of_a_rank_over_that_of_the_first(tmp_path: Path) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S})
    (two,) = measure_fake(tmp_path, engine, TWO).summaries
    rates = next(found.trials for found in two.estimates if found.metric == "observatory_run_tokens_per_second")
    halved = tuple(
        replace(found, trials=tuple(rate * 0.8 for rate in rates), median=found.median * 0.8)
        if found.metric == "observatory_run_tokens_per_second"
        else found
        for found in two.estimates
    )
    one = replace(two, run="one", case=replace(two.case, ranks=1), estimates=halved)
    first, second = curve_of([one, two])
    assert first.efficiency is None
    assert second.efficiency is not None
    assert second.efficiency.value == pytest.approx(1 / 0.8 / 2)
    assert second.efficiency.low is not None
    rows = _printed((first, second))
    assert rows[0] == "ranks throughput efficiency outcome"
    assert rows[1].startswith("1 ")
    assert rows[2].startswith("2 ")
    assert "62.5 % [" in rows[2]
    assert rows[3].startswith("efficiency: tokens/s per rank, relative to 1; total batch 4 (strong scaling)")


def test_a_number_of_ranks_that_fails_does_not_lose_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}, {("ddp", 0): CAUSE})
    (failed,) = measure_fake(tmp_path / "failed", engine, TWO).summaries
    (done,) = measure_fake(tmp_path / "done", FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}), TWO).summaries
    points = curve_of([done, replace(failed, case=replace(failed.case, ranks=4)), replace(done, run="last")])
    rows = _printed(points)
    assert rows[2] == "4 - - failed"
    assert "%" in rows[3]
    assert "efficiency on 4 is absent: ddp on 4 has no throughput" in rows
    print_curve_json(points)
    documents = json.loads(capsys.readouterr().out)
    assert [document["curve"]["ranks"] for document in documents] == [2, 4, 2]
    assert documents[1]["curve"]["efficiency"] is None
    assert documents[2]["curve"]["efficiency"]["value"] == 1.0


def _kept(folder: Path, *counts: int, failing: int | None = None) -> PersistedRuns:
    """A curve of ddp as it is kept by a history that has a strong baseline that fits and a weak one that does not."""
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "single": SINGLE_STEPS_S})
    broken = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}, {("ddp", 0): CAUSE})
    with History(f"sqlite:///{folder / 'history.sqlite'}") as history:
        baselines = replace(SINGLE, model=SMALL_MODEL), replace(SINGLE, warm_up=0)
        persist(measure_fake(folder, engine, *baselines).summaries, engine.machine(), history, explicit_baseline=None)
        measured = [
            replace(summary, case=replace(summary.case, ranks=ranks))
            for ranks in counts
            for summary in measure_fake(folder, broken if ranks == failing else engine, TWO).summaries
        ]
        return persist(measured, engine.machine(), history, explicit_baseline=None, is_curve=True)


@pytest.mark.parametrize("counts", [(1, 2), (2, 4), (4, 2, 1)])
def test_each_run_of_a_curve_keeps_the_efficiency_that_the_curve_tells_and_no_other(
    counts: tuple[int, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = _kept(tmp_path, *counts)
    assert kept.failures == ()
    first, *others = kept.summaries
    assert first.scaling == ()
    for point in curve_of(kept.summaries)[1:]:
        (found,) = point.summary.scaling
        assert (found.scaling, found.ratio, found.baseline) == ("strong", point.efficiency, "beside")
        assert (found.baseline_run, found.baseline_ranks) == (first.run, counts[0])
        of_ranks = "" if counts[0] == 1 else f" on {counts[0]} ranks"
        assert any(line.endswith(f"against {first.run}{of_ranks}") for line in all_notes(point.summary))
    notes = [note for summary in kept.summaries for note in summary.notes if "scaling efficiency" in note]
    # A curve that begins with several ranks has no step without communication to predict the others from.
    reason = "no sweep" if counts[0] == 1 else f"the baseline has {counts[0]} ranks, whose step includes communication"
    of_many = [note for note in notes if "ddp on 1 sends nothing" not in note]
    assert all(note.startswith(f"expected strong scaling efficiency is absent: {reason}") for note in of_many), notes
    assert len(of_many) == len([count for count in counts[1:] if count > 1])
    with History(f"sqlite:///{tmp_path / 'history.sqlite'}") as history:
        assert [history.find(one.run).scaling for one in others] == [one.scaling for one in others]
    print_summaries(kept.summaries, "csv")
    rows = [line for line in capsys.readouterr().out.splitlines() if "scaling_efficiency" in line]
    assert [row.split(",")[0] for row in rows] == [one.run for one in others]


def test_a_curve_whose_first_run_failed_keeps_why_there_is_no_efficiency(tmp_path: Path) -> None:
    failed, two, four = _kept(tmp_path, 1, 2, 4, failing=1).summaries
    assert (failed.scaling, two.scaling, four.scaling) == ((), (), ())
    assert not any("scaling efficiency" in note for note in failed.notes)
    for summary in (two, four):
        notes = [note for note in summary.notes if "scaling efficiency" in note]
        assert notes == ["strong scaling efficiency is absent: ddp on 1 has no throughput"]


@pytest.mark.slow
def test_real_ranks_are_measured_kept_and_told_as_a_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert main.run(["run", "ddp", "--ranks", "1,2", *SMALL, *QUICK]) == FINE
    said = capsys.readouterr()
    rows = [line.split() for line in said.out.splitlines()]
    place = rows.index(["ranks", "throughput", "efficiency", "outcome"])
    assert [row[0] for row in rows[place + 1 : place + 3]] == ["1", "2"]
    assert [row[-1] for row in rows[place + 1 : place + 3]] == ["done", "done"]
    assert rows[place + 2][3].replace(".", "").isdigit()
    (explicit_baseline,) = [row for row in rows if row[:3] == ["strong", "scaling", "efficiency"] and "%" in row]
    assert rows[place + 2][3] in explicit_baseline
    assert [line.split(" begins")[0] for line in said.err.splitlines() if " begins, " in line] == [
        "ddp on 1: trial 1 of 1",
        "ddp on 2: trial 1 of 1",
    ]
    assert main.run(["show", "--format", "json"]) == FINE
    runs = json.loads(capsys.readouterr().out)
    assert sorted(run["case"]["ranks"] for run in runs) == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--ranks 1,1", "'1,1' is not a list of different numbers of ranks; for example 1,2,4."),
        ("--ranks 1,,2", "'1,,2' is not a valid integer, nor a list like 1,2,4."),
        ("--ranks 0,2", "'0,2' is not a list of different numbers of ranks"),
        ("--ranks 1,3", "--ranks 3: ddp: batch 8 cannot be shared equally by 3 data ranks"),
        ("--ranks 1,2 --with-baseline weak", "--with-baseline cannot be set with it; use one number of ranks"),
        ("--ranks 1,2 --check-convergence", "--check-convergence cannot be set with it"),
        ("--ranks 1,2 --inject kill@2:1", 'fault "kill@2:1" is for rank 2; ranks are 0 to 1'),
    ],
)
def test_a_curve_that_cannot_be_is_refused_before_anything_starts(
    arguments: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert main.run(["run", "ddp", "--device=cpu", *arguments.split()]) == MISUSE
    (said,) = capsys.readouterr().err.splitlines()
    assert line in said
    assert list(tmp_path.iterdir()) == []
