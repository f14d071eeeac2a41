"""`observatory show` as a person calls it, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cli import run
from tests.bench.examples import make_machine
from tests.bench.fake_engine import FakeEngine
from tests.bench.fake_runs import DDP, DDP_STEPS_S, SINGLE, SINGLE_STEPS_S, measure_fake


def test_a_lost_history_is_rebuilt_and_what_was_taken_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "single": SINGLE_STEPS_S})
    folder, store = tmp_path / "runs", f"sqlite:///{tmp_path / 'new.sqlite'}"
    names = {summary.run for summary in measure_fake(folder, engine, SINGLE, DDP).summaries}
    assert run(["show", "--rebuild", "--runs", str(folder), "--store", store]) == 0
    said = capsys.readouterr()
    assert all(name in said.out for name in names)
    assert said.err.strip() == f"2 run(s) of {folder} were taken into the history"
    assert run(["show", "--rebuild", "--runs", str(folder), "--store", store]) == 0
    assert capsys.readouterr().err.strip() == f"0 run(s) of {folder} were taken into the history"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--rebuild", "--timeline"], "--import, --export, --rebuild and --timeline cannot be together"),
        (["--rebuild", "2026"], "--rebuild takes all runs of a folder"),
        (["--rebuild", "--runs", "/nowhere"], "/nowhere is no folder; --runs names the one that holds the runs"),
    ],
)
def test_a_rebuild_takes_nothing_but_a_folder(
    arguments: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["show", *arguments, "--store", f"sqlite:///{tmp_path / 'new.sqlite'}"]) == 2
    assert line in capsys.readouterr().err
