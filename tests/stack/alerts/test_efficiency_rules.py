"""The alerts, as Prometheus evaluates them over weeks of nights."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from collectors.metrics.agent import RUN_LAST_COMPLETION
from collectors.metrics.metric import Statistic
from collectors.metrics.results import RUN_SCALING_EFFICIENCY
from dashboards.rules import load
from dashboards.thresholds import changed_by
from tests.dashboards.alert_links import THRESHOLDS
from tests.stack.alerts.nights import BEAT_MINUTES, CRITICAL, KIND, NIGHT, OWNER, USUAL, alert_of, rehearse
from tests.stack.alerts.rehearsal import SCRAPED
from tests.support.grafana_expressions import select

pytestmark = [pytest.mark.stack, pytest.mark.slow]

(ACCEPTED,) = (one.ratio for one in THRESHOLDS.accepted_efficiency if one.strategy == "ddp")
FRESH_HOURS = THRESHOLDS.efficiency.fresh_hours
BEFORE = USUAL[: THRESHOLDS.efficiency.least_nights + 2]
"""More nights than the rules need; the tester's time grows with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nights:
    """What an exporter shows over some nights, a new result at the beginning of each.

    half_interval: of each result; None for results of one trial, which have no interval.
    idle_nights: how long the last result is shown with nothing finished any more.
    one_run_before: all results but the last are of one run, shown night after night.
    nights_without: completions before the first result, of runs that had no baseline.
    one_day_before: all results but the last were completed within one day, an hour apart.
    ends: the exporter goes two hours after the last result, and all its series are stale.
    """

    results: Sequence[float]
    half_interval: float | None = 0.01
    device: str = "cpu"
    idle_nights: int = 0
    one_run_before: bool = False
    nights_without: int = 0
    one_day_before: bool = False
    ends: bool = False

    def owner(self) -> dict[str, str]:
        return {**OWNER, "device": self.device}

    def series(self) -> dict[str, str]:
        """The exporter's series in promtool's notation."""
        offsets: dict[Statistic, float] = {"median": 0.0}
        if self.half_interval is not None:
            offsets |= {"low": -self.half_interval, "high": self.half_interval}
        shown = {
            select(RUN_SCALING_EFFICIENCY.statistic(which), **self.owner(), **KIND, **SCRAPED): [
                result + offset for result in self.results
            ]
            for which, offset in offsets.items()
        }
        completed = [float(number * 24 * 3600) for number in range(len(self.results))]
        if self.one_run_before:
            completed[:-1] = [0.0] * (len(completed) - 1)
        shown[select(RUN_LAST_COMPLETION, **self.owner(), **SCRAPED)] = completed
        if self.nights_without:
            return self._after_nights_without(shown)
        return {name: self._values(values) for name, values in shown.items()}

    def _after_nights_without(self, shown: dict[str, list[float]]) -> dict[str, str]:
        """The results begin late; completions were there from the first night on."""
        completion, absent = select(RUN_LAST_COMPLETION, **self.owner(), **SCRAPED), self.nights_without * NIGHT
        earlier = " ".join(f"{-night}+0x{NIGHT - 1}" for night in range(self.nights_without, 0, -1))
        return {
            name: f"{earlier if name == completion else f'_x{absent}'} {self._values(values)}"
            for name, values in shown.items()
        }

    def _values(self, values: Sequence[float]) -> str:
        *before, last = values
        if self.one_day_before:
            hours = " ".join(f"{value:.6f}" for value in before)
            return f"{hours} {before[-1]:.6f}+0x{NIGHT - len(before) - 1} {last:.6f}+0x{NIGHT}"
        beats = 120 // BEAT_MINUTES if self.ends else NIGHT * (1 + self.idle_nights)
        held = [f"{value:.6f}+0x{NIGHT - 1}" for value in before]
        return " ".join((*held, f"{last:.6f}+0x{beats}", *(["stale"] if self.ends else [])))


def _last_hour(nights: Nights) -> int:
    """When the last result came."""
    return (1 if nights.one_day_before else len(nights.results) - 1 + nights.nights_without) * 24


def _fires(nights: Nights, folder: Path, *, hours_after: int = 1, silent_after: Sequence[int] = ()) -> None:
    """silent_after: hours at which it does not, of the same nights: their evaluation is what takes a second."""
    alert = alert_of({**nights.owner(), **KIND}, nights.results[-1])
    expected = {hours_after: [alert], **{hours: [] for hours in silent_after}}
    rehearse(nights.series(), {_last_hour(nights) + hours: alerts for hours, alerts in expected.items()}, folder)


def _is_silent(nights: Nights, folder: Path, *, hours_after: Sequence[int] = (1,)) -> None:
    rehearse(nights.series(), {_last_hour(nights) + hours: [] for hours in hours_after}, folder)


def test_a_drop_below_other_nights_fires_once_it_has_lasted(tmp_path: Path) -> None:
    _fires(Nights(results=(*USUAL, 0.80)), tmp_path, silent_after=[0])


def test_a_drop_that_stays_fires_the_next_night_too(tmp_path: Path) -> None:
    _fires(Nights(results=(*BEFORE, 0.80, 0.80)), tmp_path)


def test_a_good_night_ends_it(tmp_path: Path) -> None:
    _is_silent(Nights(results=(*BEFORE, 0.80, 0.90)), tmp_path)


def test_nights_without_a_baseline_are_no_history(tmp_path: Path) -> None:
    _is_silent(Nights(results=(0.90, 0.86), nights_without=10), tmp_path)


def test_many_runs_of_one_day_are_one_night(tmp_path: Path) -> None:
    _is_silent(Nights(results=(*BEFORE, 0.80), one_day_before=True), tmp_path)


def test_a_rise_is_silent(tmp_path: Path) -> None:
    _is_silent(Nights(results=(*BEFORE, 0.99)), tmp_path)


def test_noise_is_silent_on_every_night(tmp_path: Path) -> None:
    series: dict[str, str] = {}
    for seed in range(3):
        noise = random.Random(seed)
        results = [0.90 + max(-0.02, min(0.02, noise.gauss(0, 0.01))) for _ in range(20)]
        nights = Nights(results=results, half_interval=0.015)
        named = ((name.replace(OWNER["series"], f"seed{seed}"), values) for name, values in nights.series().items())
        series |= dict(named)
    assert len(series) == 12, "each seed has a series of its own"
    rehearse(series, {_last_hour(nights) + hours: [] for hours in range(-8 * 24, 24)}, tmp_path)


def test_a_drop_within_its_own_interval_is_silent(tmp_path: Path) -> None:
    _is_silent(Nights(results=(*BEFORE, 0.80), half_interval=0.12), tmp_path)


def test_a_drop_within_the_spread_of_other_nights_is_silent(tmp_path: Path) -> None:
    restless = [0.9, 0.8, 0.86, 0.94, 0.82, 0.9, 0.96, 0.84, 0.92, 0.8, 0.95, 0.88, 0.83, 0.93, 0.9]
    _is_silent(Nights(results=(*restless, 0.78)), tmp_path)


def test_a_drop_too_small_to_matter_is_silent_however_quiet_other_nights_were(tmp_path: Path) -> None:
    _is_silent(Nights(results=(*(0.9 for _ in BEFORE), 0.89), half_interval=0.001), tmp_path)


def test_a_run_without_an_interval_is_silent(tmp_path: Path) -> None:
    _is_silent(Nights(results=(*BEFORE, 0.5), half_interval=None), tmp_path)


def test_one_night_less_than_enough_is_silent_and_enough_fires(tmp_path: Path) -> None:
    least = THRESHOLDS.efficiency.least_nights
    _is_silent(Nights(results=(*USUAL[: least - 1], 0.80)), tmp_path, hours_after=[23])
    _fires(Nights(results=(*USUAL[:least], 0.80)), tmp_path, hours_after=23)


def test_one_result_shown_for_weeks_is_no_history(tmp_path: Path) -> None:
    _is_silent(Nights(results=(*(0.9 for _ in BEFORE), 0.80), one_run_before=True), tmp_path)
    _fires(Nights(results=(*(0.9 for _ in BEFORE), 0.80)), tmp_path)


def test_a_finished_run_whose_exporter_went_is_silent(tmp_path: Path) -> None:
    went = Nights(results=(*BEFORE, 0.80), ends=True)
    _fires(went, tmp_path, hours_after=2, silent_after=[4])


def test_a_strategy_that_no_longer_runs_is_silent_though_its_last_result_is_shown(tmp_path: Path) -> None:
    left = Nights(results=(*BEFORE, 0.80), idle_nights=3)
    _fires(left, tmp_path, hours_after=FRESH_HOURS - 1, silent_after=[FRESH_HOURS + 1])


def test_a_level_below_the_accepted_one_fires_without_any_history(tmp_path: Path) -> None:
    _fires(Nights(results=(ACCEPTED - 0.05,), device="cuda"), tmp_path)


def test_a_level_whose_interval_reaches_the_accepted_one_is_silent(tmp_path: Path) -> None:
    _is_silent(Nights(results=(ACCEPTED - 0.05,), device="cuda", half_interval=0.06), tmp_path)


def test_an_accepted_level_is_of_its_device_only(tmp_path: Path) -> None:
    _is_silent(Nights(results=(ACCEPTED - 0.05,), device="cpu"), tmp_path)


def test_a_loss_that_comes_slowly_is_seen_by_the_accepted_level_alone(tmp_path: Path) -> None:
    slowly = [0.90 - 0.006 * night for night in range(22)]
    _is_silent(Nights(results=slowly, device="cpu"), tmp_path)
    _fires(Nights(results=slowly, device="cuda"), tmp_path)


def test_a_drop_below_both_levels_is_one_alert(tmp_path: Path) -> None:
    _fires(Nights(results=(*BEFORE, 0.70), device="cuda"), tmp_path)


@pytest.mark.parametrize(
    ("device", "low", "fires"),
    [
        ("cpu", 0.79, True),  # The median is 0.9, and the interval reaches 0.01 higher.
        ("cpu", 0.81, False),
        ("cuda", ACCEPTED - 0.1, True),
        ("cuda", ACCEPTED - 0.08, False),
    ],
)
def test_a_result_far_below_either_level_is_critical(device: str, low: float, fires: bool, tmp_path: Path) -> None:
    nights = Nights(results=(*BEFORE, low) if device == "cpu" else (low,), device=device)
    alerts = [alert_of({**nights.owner(), **KIND}, low, CRITICAL)] * fires
    rehearse(nights.series(), {_last_hour(nights) + 2: alerts}, tmp_path, alert=CRITICAL)


@pytest.mark.parametrize(
    ("entries", "fires"),
    [
        ((None, 0.8), True),
        ((8, 0.8), True),
        ((16, 0.8), False),
        ((None, 0.7), False),
        ((None, 0.8, 8, 0.7), False),  # A level of these ranks goes first.
        ((None, 0.7, 8, 0.8), True),
        ((), False),
    ],
    ids=str,
)
def test_a_file_says_which_level_is_accepted_of_which_ranks(
    entries: tuple[float | None, ...], fires: bool, tmp_path: Path
) -> None:
    levels = [{"ranks": ranks, "ratio": ratio} for ranks, ratio in zip(entries[::2], entries[1::2], strict=True)]
    changed = changed_by(_accepted(levels), "mine.toml")
    nights = Nights(results=(0.75,), device="cuda")
    alerts = [alert_of({**nights.owner(), **KIND}, 0.75)] * fires
    (rules,) = (group for group in load(changed) if group.name == "nightly")
    rehearse(nights.series(), {3: alerts}, tmp_path, rules=rules)


def _accepted(levels: list[dict[str, float | None]]) -> dict[str, Any]:
    of_all = {"strategy": "ddp", "device": "cuda", "scaling": "weak"}
    return {
        "accepted_efficiency": [{**of_all, **{key: value for key, value in level.items() if value}} for level in levels]
    }
