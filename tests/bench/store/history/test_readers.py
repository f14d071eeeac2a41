"""A person who may only read the history and the folders of runs: `show` and `check` answer all the same."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from bench.cli.main import run
from bench.store.history import History
from tests.bench.made.fake_nights import STEP_S, FakeNights


def _nights(history: History, first: int, last: int) -> None:
    made = FakeNights(history, seed=first)
    for number in range(first, last):
        made.add(number, {"ddp": STEP_S})


@pytest.fixture
def places(open_folder: Path) -> list[str]:
    """Options that name a history of 20 nights, all judged, and a folder of runs."""
    (open_folder / "runs").mkdir()
    url = f"sqlite:///{open_folder}/history.sqlite"
    with History(url) as history:
        _nights(history, 0, 20)
    places = ["--store", url, "--runs", f"{open_folder}/runs"]
    run(["check", *places])
    return places


def test_a_reader_sees_what_is_judged(
    places: list[str], without_right_to_write: AbstractContextManager[None], capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["check", *places])
    judged = capsys.readouterr().out
    assert "night night0019: 2 same" in judged
    with without_right_to_write:
        assert run(["check", *places]) == code
    said = capsys.readouterr()
    assert said.out == judged
    assert "not judged" not in said.err


def test_a_reader_is_told_which_nights_wait_for_somebody_who_may_write(
    places: list[str], without_right_to_write: AbstractContextManager[None], capsys: pytest.CaptureFixture[str]
) -> None:
    with History(places[1]) as history:
        _nights(history, 20, 22)
    capsys.readouterr()
    with without_right_to_write:
        run(["check", *places])
    said = capsys.readouterr()
    assert "night night0019" in said.out
    assert "suite nightly: nights after night0019 are not judged, because that needs a writable store" in said.err


def test_a_reader_cannot_accept_a_level(
    places: list[str], without_right_to_write: AbstractContextManager[None], capsys: pytest.CaptureFixture[str]
) -> None:
    with without_right_to_write:
        assert run(["check", *places[:2], "--accept", "ddp", "--because", "it is so"]) == 4
    assert "this program writes only to your own files" in capsys.readouterr().err


def test_a_reader_sees_the_runs(
    places: list[str], without_right_to_write: AbstractContextManager[None], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    with without_right_to_write:
        assert run(["show", "--format", "json", *places]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 20
