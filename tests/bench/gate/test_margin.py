"""A case's own margin: what is worse by less is accepted, until it grows beyond it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.case import Purpose, SuiteMember
from bench.errors import Misuse
from bench.gate.nightly import judge_nights
from bench.gate.verdicts import Verdict
from bench.store.history import History
from bench.suite.file import read_suite
from tests.bench.made.fake_nights import STEP_S, FakeNights

USUAL = 20
SUITE = 'schema_version = 1\n[case.ddp]\nranks = 2\nbatch = 2\ndevice = "cpu"\n{line}\n'


def _judged(folder: Path, margin: float | None, *changes: float) -> list[Verdict]:
    """The verdicts on the step of twenty usual nights, and of one night for each change."""
    with History(f"sqlite:///{folder / 'history.sqlite'}") as history:
        nights = FakeNights(history)
        for number, change in enumerate([0.0] * USUAL + list(changes)):
            member = SuiteMember(suite="nightly", id=f"night{number:04}", case="ddp", margin=margin)
            nights.add(number, {"ddp": STEP_S * (1 + change)}, purpose=Purpose(origin="nightly", member=member))
        found = judge_nights(history, "nightly")
    return [one for one in found if one.key.metric == "observatory_run_step_seconds"][USUAL:]


def test_what_is_worse_within_the_margin_is_accepted_and_its_margin_kept(tmp_path: Path) -> None:
    (*_, last) = _judged(tmp_path, 0.10, *[0.05] * 5)
    assert (last.outcome, last.margin) == ("accepted", 0.10)
    assert last.reason.endswith("within the margin of 10 % that the suite file gives the case")
    assert last.change_ratio == pytest.approx(1.05, abs=0.01)


def test_without_a_margin_the_same_nights_are_worse(tmp_path: Path) -> None:
    (*_, last) = _judged(tmp_path, None, *[0.05] * 5)
    assert (last.outcome, last.margin) == ("confirmed", None)


def test_what_grows_beyond_the_margin_in_two_steps_is_confirmed(tmp_path: Path) -> None:
    found = _judged(tmp_path, 0.10, *[0.06] * 8, *[0.14] * 8)
    assert found[7].outcome == "accepted"
    assert found[-1].outcome == "confirmed"


def test_a_wide_margin_makes_a_noisy_night_the_same(tmp_path: Path) -> None:
    usual, wide = (_judged(_made(tmp_path / name), margin, 0.0)[-1] for name, margin in (("a", None), ("b", 0.5)))
    assert wide.shown == "same"
    assert usual.margin is None


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_suite_file_gives_a_case_or_all_of_them_a_margin(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(SUITE.format(line="gate = { margin = 0.05 }\n[case.fsdp]\nranks = 2"))
    assert read_suite(path).margins == {"ddp": 0.05}
    assert read_suite(path, ["defaults.gate.margin=0.1"]).margins == {"ddp": 0.05, "fsdp": 0.1}
    before = read_suite(path).digest
    path.write_text(SUITE.format(line="[case.fsdp]\nranks = 2"))
    assert read_suite(path).digest == before  # It is no part of what is measured: a run of the suite goes on.


@pytest.mark.parametrize("value", ["0", "-0.1", "1.5", "nan", "inf", '"5 %"', "true", "[0.1, 0.2]"])
def test_a_margin_that_cannot_be_is_refused_in_one_line(tmp_path: Path, value: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(SUITE.format(line=f"gate = {{ margin = {value} }}"))
    with pytest.raises(Misuse, match=r"gate.margin is .*it may be a number of at least 0.005 and at most 1") as refused:
        read_suite(path)
    assert "\n" not in str(refused.value)
