"""The detector beside apache-otava on the judge's labelled series: F1, recall, delay and false alarms with intervals.

    python -m tests.benchmarks.detector [--judge FOLDER] [--seeds 10-19] [--processes N] [--series-per-seed N]
                                        [--otava-series-per-seed N] [--otava-venv FOLDER] [--keep FOLDER] [--no-otava]

The judge's seeds 1 to 3 were used to look, 4 to 9 to tune, 10 to 19 to report. Otava runs in a virtual environment of
its own, which is removed with its files unless a folder is named for them. What it is given and how it is held is in
tests/benchmarks/gate/otava_worker.py. Intervals are the 2.5 and 97.5 percentiles of a bootstrap over series.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from itertools import repeat
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.gate import otava_runs
from tests.benchmarks.gate.judged_series import Alerts, JudgedSeries, evenly, fingerprint, judged_seed, load

ROOT = Path(__file__).parents[2]
DRAWS = 2000
PROFILES = ("quiet", "typical", "noisy", "bimodal", "autocorr")
COUNTS = ("tp", "fp", "spike", "shifts", "first", "nights", "delay")
Figures = dict[str, NDArray[np.float64]]
Rules = dict[str, Callable[[JudgedSeries], Alerts]]


def seeds_of(text: str) -> list[int]:
    """Return seeds from "10-19" or "4,6,8"."""
    first, _, last = text.partition("-")
    return list(range(int(first), int(last) + 1)) if last else [int(seed) for seed in text.split(",")]


def alerts_of(tier: str, series: JudgedSeries) -> Alerts:
    return series.alerts[tier]


def alerts_of_otava(found: otava_runs.Answers, variant: str, series: JudgedSeries) -> Alerts:
    return found[series.name][variant][0]


def counts_of(core: ModuleType, series: JudgedSeries, alerts: Sequence[dict[str, int]]) -> list[float]:
    """Return what the judge's score counts in one series, in the order of COUNTS."""
    scored = [alert for alert in alerts if alert["raised_at"] >= core.WARMUP]
    found = core.score_online(scored, series.events, series.nights)
    delays = [delay for _, delay in found["det"] if delay is not None]
    first = sum(delay == 0 for delay in delays)
    return [found["tp"], found["fp"], found["spike"], found["shifts"], first, found["nights"], sum(delays)]


def figures_of(counts: NDArray[np.float64]) -> Figures:
    """Return the figures from sums over series; counts: (..., count)."""
    tp, fp, spike, shifts, first, nights, delay = np.moveaxis(counts, -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        precision, recall = tp / (tp + fp + spike), tp / shifts
        return {
            "F1": 2 * tp / (tp + fp + spike + shifts),
            "precision": precision,
            "recall": recall,
            "first night": first / shifts,
            "delay": delay / tp,
            "false": 1000 * fp / nights,
            "spikes": 1000 * spike / nights,
        }


def interval(draws: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.nanpercentile(draws, [2.5, 97.5])
    return float(low), float(high)


class Bootstrap:
    """Draws of series with replacement, the same for all rules, so that differences are paired."""

    def __init__(self, series: int) -> None:
        generator = np.random.default_rng(0)
        self.weights = generator.multinomial(series, np.full(series, 1 / series), size=DRAWS).astype(float)

    def figures(self, counts: NDArray[np.float64]) -> tuple[Figures, Figures]:
        """Return the figures, and those of each draw; counts: (series, count)."""
        return figures_of(counts.sum(axis=0)), figures_of(self.weights @ counts)


def row(name: str, figures: Figures, draws: Figures) -> str:
    cells = [name]
    for figure, shown in (
        ("F1", "{:.3f}"),
        ("precision", "{:.3f}"),
        ("recall", "{:.3f}"),
        ("first night", "{:.3f}"),
        ("delay", "{:.1f}"),
        ("false", "{:.2f}"),
        ("spikes", "{:.2f}"),
    ):
        low, high = interval(draws[figure])
        cells.append(f"{shown} [{shown}, {shown}]".format(float(figures[figure]), low, high))
    return "| " + " | ".join(cells) + " |"


HEAD = (
    "| rule | F1 | precision | recall | first-night recall | delay, nights | false alarms / 1,000 | "
    "spike alerts / 1,000 |\n|---|---|---|---|---|---|---|---|"
)


def table(core: ModuleType, series: Sequence[JudgedSeries], rules: Rules) -> str:
    """Return the rules' figures, of all series and of each profile, and how ours differs from the last rule."""
    lines = [f"{len(series)} series, {sum(one.nights - core.WARMUP for one in series)} series-nights", "", HEAD]
    all_draws: dict[str, tuple[Figures, Figures]] = {}
    for profile in (None, *PROFILES):
        chosen = [one for one in series if profile in (None, one.profile)]
        if not chosen:
            continue
        bootstrap = Bootstrap(len(chosen))
        for rule, of_rule in rules.items():
            counts = np.array([counts_of(core, one, of_rule(one)) for one in chosen], dtype=float)
            figures, draws = bootstrap.figures(counts)
            if profile is None:
                all_draws[rule] = figures, draws
            lines.append(row(rule if profile is None else f"{rule}, {profile}", figures, draws))
    ours, rival = "tier 2", otava_runs.VARIANTS["rerun_hold"]
    if rival in all_draws:
        lines.append("")
        for figure in ("F1", "recall", "false"):
            difference = float(all_draws[ours][0][figure] - all_draws[rival][0][figure])
            low, high = interval(all_draws[ours][1][figure] - all_draws[rival][1][figure])
            lines.append(f"{ours} - {rival}, {figure}: {difference:+.3f} [{low:+.3f}, {high:+.3f}], paired by series")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge", type=Path, default=ROOT.parent / "shared" / "gate", metavar="FOLDER")
    parser.add_argument("--seeds", type=seeds_of, default=seeds_of("10-19"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--series-per-seed", type=int)
    parser.add_argument("--otava-series-per-seed", type=int, help="fewer than all: it takes 2 s of CPU for each")
    parser.add_argument("--otava-venv", type=Path, metavar="FOLDER")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keeps what Otava was given and answered")
    parser.add_argument("--no-otava", action="store_true")
    arguments = parser.parse_args()
    try:
        core, _ = load(arguments.judge)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    print(f"commit {commit.stdout.strip()}; judge {fingerprint(arguments.judge)}; numpy {version('numpy')}")
    print(f"seeds read: {', '.join(map(str, arguments.seeds))}")
    with ProcessPoolExecutor(arguments.processes) as pool:
        parts = list(pool.map(judged_seed, repeat(arguments.judge), arguments.seeds, repeat(arguments.series_per_seed)))
    series = [one for part in parts for one in part]
    trials, extra = sum(one.trials for one in series), sum(one.extra_trials for one in series)
    rules: Rules = {tier: partial(alerts_of, tier) for tier in ("tier 1", "tier 2")}
    print(f"reruns: {extra} trials beside {trials}, {extra / trials:.2%}\n")
    print(table(core, series, rules))
    if arguments.no_otava:
        return 0
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        python = otava_runs.make_environment((arguments.otava_venv or temporary / "venv").absolute())
        given: dict[int, list[JudgedSeries]] = {
            seed: evenly(part, arguments.otava_series_per_seed)
            for seed, part in zip(arguments.seeds, parts, strict=True)
        }
        found = otava_runs.run(given, python, (arguments.keep or temporary / "series").absolute(), arguments.processes)
    both = [one for part in given.values() for one in part]
    for variant, name in otava_runs.VARIANTS.items():
        rules[name] = partial(alerts_of_otava, found, variant)
    print(f"\nThe same beside apache-otava {otava_runs.VERSION}, on the series that it was given:\n")
    print(table(core, both, rules))
    nights = sum(one.nights for one in both)
    for variant in ("rerun", "rerun_hold"):
        asked = sum(found[one.name][variant][1] for one in both)
        print(
            f"{otava_runs.VARIANTS[variant]}: {asked} nights of {nights} run again, {asked / nights:.2%} extra trials"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
