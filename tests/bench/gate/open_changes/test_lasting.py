"""An alert that stays open has a verdict of its own, and can be accepted once three nights agree."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from bench.cli.main import run
from bench.errors import Misuse
from bench.gate.accept import accept
from bench.gate.nightly import judge_nights
from bench.gate.verdicts import BAD, Verdict, load_states, save_night
from bench.store.history import History
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.fake_nights import DAY_NS, STEP_S, FakeNights, fill

NOISY_MS = (21.0, 64.0, 47.0, 81.0, 33.0, 58.0, 26.0, 72.0, 40.0, 55.0, 68.0, 30.0)
TENFOLD_MS = (734.0, 737.0, 740.0, 718.0, 731.0)


def _steps(verdicts: list[Verdict]) -> list[Verdict]:
    return [each for each in verdicts if each.key.metric == RUN_STEP_SECONDS.name]


def _store(tmp_path: Path) -> list[str]:
    return ["--store", f"sqlite:///{tmp_path / 'history.sqlite'}"]


def _tenfold(tmp_path: Path, bad_nights: int) -> list[str]:
    """Twelve noisy nights and some that are ten times slower, judged each; the first bad one is measured again."""
    store = _store(tmp_path)
    first_ns = time.time_ns() - (len(NOISY_MS) + bad_nights - 1) * DAY_NS - DAY_NS // 12
    with History(store[1]) as history:
        nights = FakeNights(history, first_ns=first_ns)
        for number, level_ms in enumerate((*NOISY_MS, *TENFOLD_MS[:bad_nights])):
            nights.add(number, {"ddp": level_ms / 1e3})
            if number == len(NOISY_MS):
                nights.add_run(number, "ddp", nights.trials(level_ms / 1e3), is_rerun=True)
            judge_nights(history, "nightly")
    return store


def test_a_tenfold_step_on_a_short_noisy_history_can_be_accepted_after_three_nights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = _tenfold(tmp_path, 3)
    assert run(["check", *store]) == 5
    assert run(["check", "--accept", "ddp", "--because", "the new model is larger", *store]) == 0
    assert "the present level of 2 figures is accepted" in capsys.readouterr().err
    assert run(["check", *store]) == 0
    with History(store[1]) as history:
        nights = FakeNights(history, first_ns=time.time_ns() - 15 * DAY_NS - DAY_NS // 24)
        nights.add(15, {"ddp": 0.735})
        assert {each.outcome for each in judge_nights(history, "nightly")} == {"same"}
    assert run(["check", *store]) == 0


def test_two_nights_cannot_be_accepted_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = _tenfold(tmp_path, 2)
    assert run(["check", "--accept", "ddp", "--because", "agreed", *store]) == 2
    message = capsys.readouterr().err
    assert "is from 2 nights only, and its new level is not known yet; accept it when 3 nights agree" in message
    assert message.count("\n") == 1


def _with_an_open_alert(history: History, later: list[float]) -> None:
    """Thirty nights, an alert, and nights after it on which the alert is still open."""
    nights = FakeNights(history)
    fill(nights, 30)
    nights.add(30, {"ddp": 1.08 * STEP_S})
    nights.add_run(30, "ddp", nights.trials(1.08 * STEP_S), is_rerun=True)
    judge_nights(history, "nightly")
    known = load_states(history, "nightly")
    for number, level in enumerate(later, 31):
        nights.add(number, {"ddp": level * STEP_S})
    assert all(series.state.detector.alert is not None for series in known.values())


def test_an_alert_of_seven_nights_is_lasting_and_worse(history: History) -> None:
    _with_an_open_alert(history, [1.08])
    known = load_states(history, "nightly")
    raised_earlier = []
    for series in known.values():
        alert = series.state.detector.alert
        assert alert is not None
        alert = msgspec.structs.replace(alert, raised=alert.raised - 5)
        detector = msgspec.structs.replace(series.state.detector, alert=alert)
        raised_earlier.append(series.with_state(msgspec.structs.replace(series.state, detector=detector)))
    save_night(history, known, raised_earlier, [])
    (verdict,) = _steps(judge_nights(history, "nightly"))
    assert verdict.outcome == "lasting"
    assert verdict.outcome in BAD
    assert verdict.reason.endswith("it has been open for 7 nights or more; accept it if these agree")
    assert verdict.change_ratio == pytest.approx(1.08, abs=0.02)
    assert verdict.cause is not None


def test_nights_that_do_not_agree_cannot_be_accepted(history: History) -> None:
    _with_an_open_alert(history, [])
    changed = []
    for series in load_states(history, "nightly").values():
        *before, last = series.state.detector.nights
        # Two more nights since the alert: one as before, one as bad.
        more = (msgspec.structs.replace(last, number=last.number + 1, log_value=before[-1].log_value), last)
        detector = msgspec.structs.replace(series.state.detector, nights=(*before, last, *more))
        changed.append(series.with_state(msgspec.structs.replace(series.state, detector=detector)))
    with pytest.raises(Misuse, match=r"has no level yet: its last 3 nights differ by .* accept it when 3 nights agree"):
        accept(changed, case="ddp", metric=None, who="ada", because="agreed", now_ns=1)
