"""How often the intervals that the product prints hold the truth, and how often comparisons show a false difference.

    python -m tests.benchmarks.coverage [--only laws|groups|false|power|figures|link] [--experiments N] [--curves N]

Everything is simulated, by fixed seeds, and put through the functions that figures come from. Tables in Markdown, as
docs/measured/coverage.md shows them: `laws` of scaling curves whose points differ by more than their trials; two
`groups` of trials, false differences and power, with and without other runs of their series; `false` differences in
pairs and their `power`, alongside t alone; `figures` of one run; the fitted `link`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import scipy  # Whose statistics take a second to load, and do when they are first asked.

from bench.analysis.scaling.laws import Bounded, Law, ScalingFit, WorldSize, fit
from bench.results.estimate import Estimate, estimate, estimate_share
from bench.results.two_sides import LEAST_APART, LEAST_KNOWN, Difference, in_groups, in_pairs, known_noise
from collectors.metrics.results import RUN_OVERLAP_RATIO, RUN_STEP_SECONDS
from tests.bench.results.comparison.experiments import SHAPES, SKEWED, Floats, Shape, slow_modes, trials_of
from workloads.cost_models.link_fit import Interval, NoLinkFit, TimedSize
from workloads.cost_models.link_fit import fit as fit_link

TRIALS = (3, 5, 8, 10, 20)
GROUPS = (3, 4, 5, 8, 12)
LEAST_RUNS = 12
"""Other runs of each series, of as many trials; more where these have too few degrees of freedom."""
NOISE = 0.01
"""Of a trial, on logarithms; 1 %."""
Table = Iterable[str]


def row(*cells: object) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def header(*cells: object) -> list[str]:
    return [row(*cells), f"|{'---|' * len(cells)}"]


# Laws of scaling curves


def throughput(law: Law, parameters: Sequence[float], ranks: int) -> float:
    first = parameters[0]
    if law == "amdahl":
        return 1 / (first + (1 - first) / ranks)
    if law == "gustafson":
        return ranks - first * (ranks - 1)
    return ranks / (1 + first * (ranks - 1) + parameters[1] * ranks * (ranks - 1))


def curve(
    random: np.random.Generator, law: Law, parameters: Sequence[float], points: int, trials: int, between: float
) -> list[WorldSize]:
    """Points on 1, 2, 4, ... ranks that lie off the law by the deviation `between`, each with trials of its own."""
    made = []
    for ranks in (2**power for power in range(points)):
        middle = math.log(throughput(law, parameters, ranks)) + random.normal(0, between)
        made.append(
            WorldSize(ranks=ranks, throughputs=tuple(np.exp(middle + random.normal(0, NOISE, trials)).tolist()))
        )
    return made


def holds(bounded: Bounded, truth: float) -> bool:
    return bounded.low is not None and bounded.high is not None and bounded.low <= truth <= bounded.high


def laws(curves: int) -> Table:
    deviations = (0.0, 0.01, 0.03, 0.05)
    yield from header("law", "points", "trials", *(f"points differ by {100 * between:g} %" for between in deviations))
    cells: list[tuple[Law, str, tuple[float, ...], int, int, int]] = [
        (law, "serial_fraction", (0.1,), points, trials, curves)
        for law in ("amdahl", "gustafson")
        for points in (3, 4, 5, 6)
        for trials in (2, 3, 4, 5)
    ]
    cells.append(("usl", "contention", (0.05, 0.002), 4, 3, curves // 5))
    for law, parameter, truth, points, trials, count in cells:
        shown = []
        for between in deviations:
            random = np.random.default_rng(points * 1000 + trials)
            fits = [fit(law, curve(random, law, truth, points, trials, between)) for _ in range(count)]
            found = [one.parameters[parameter] for one in fits if isinstance(one, ScalingFit)]
            widths = [one.high - one.low for one in found if one.low is not None and one.high is not None]
            share = sum(holds(one, truth[0]) for one in found) / count
            shown.append(f"{share:.2f}, {100 * float(np.median(widths)):.1f} pt")
        yield row(law, points, trials, *shown)


# Differences of two sides


def shares_of_pairs(a: Floats, b: Floats) -> tuple[float, float]:
    """The shares of experiments that show a difference in pairs: by t alone, and by the tests of `compare`.

    What disturbs both sides has the deviation of the noisier one.
    """
    drift = np.random.default_rng(1000 + a.shape[1]).normal(0.0, b.std(axis=1).mean(), a.shape)
    alone = scipy.stats.ttest_rel(a + drift, b + drift, axis=1).pvalue
    sides = zip((a + drift).tolist(), (b + drift).tolist(), strict=True)
    return float(np.mean(alone < 0.05)), float(np.mean([is_shown(in_pairs(*pair, slower=1)) for pair in sides]))


def shares_of_groups(a: Floats, b: Floats, trials: int) -> tuple[float, float, float]:
    """The shares of experiments that show a difference: by t alone, by `compare`, and by it with other runs' noise.

    a, b: by experiment, run and trial; the first run is compared, the others are the history.
    """
    alone = scipy.stats.ttest_ind(b[:, 0], a[:, 0], axis=1, equal_var=False).pvalue
    by_trials = with_runs = 0
    for (of_a, *runs_a), (of_b, *runs_b) in zip(a.tolist(), b.tolist(), strict=True):
        by_trials += trials >= LEAST_APART and is_shown(in_groups(of_a, of_b, slower=1))
        with_runs += is_shown(in_groups(of_a, of_b, slower=1, known=(known_noise(runs_a), known_noise(runs_b))))
    return float(np.mean(alone < 0.05)), by_trials / len(a), with_runs / len(a)


def is_shown(difference: Difference) -> bool:
    return difference.p_value < 0.05 and not difference.low <= 0 <= difference.high


Sides = Callable[[np.random.Generator, tuple[int, ...]], tuple[Floats, Floats]]


def of_shape(shape: Shape, about: str, quiet: float = 0.01, noisy: float = 0.05) -> Sides:
    def sides(random: np.random.Generator, size: tuple[int, ...]) -> tuple[Floats, Floats]:
        a, b = (trials_of(random, shape, size, "mean" if about == "means" else "median") for _ in "ab")
        return quiet * a, noisy * b

    return sides


def of_slow_trials(slow: float) -> Sides:
    def sides(random: np.random.Generator, size: tuple[int, ...]) -> tuple[Floats, Floats]:
        return slow_modes(random, slow, size, 0.01), slow_modes(random, slow, size, 0.05)

    return sides


def false_cases() -> list[tuple[str, Sides]]:
    cases: list[tuple[str, Sides]] = [(f"{shape}, both 5 %", of_shape(shape, "medians", 0.05)) for shape in SHAPES]
    cases += [(f"{shape}, 1 % and 5 %, equal medians", of_shape(shape, "medians")) for shape in SHAPES]
    cases += [(f"{shape}, 1 % and 5 %, equal means", of_shape(shape, "means")) for shape in SKEWED]
    cases += [
        (f"{100 * slow:.0f} % of both sides' trials 20 % slower, others 1 % and 5 %", of_slow_trials(slow))
        for slow in (0.1, 0.3, 0.5)
    ]
    unseen: tuple[Shape, ...] = ("modes 10 %", "modes 30 %")
    return cases + [(f"{shape}, 1 % and 5 %, equal means", of_shape(shape, "means")) for shape in unseen]


def power_cases() -> list[tuple[str, Sides]]:
    """Changes that t alone shows in about four of five experiments in groups."""
    changes = {3: 4.0, 4: 2.8, 5: 2.2, 8: 1.6, 10: 1.35, 12: 1.25, 20: 0.95}

    def changed(noisy: float, sign: int) -> Sides:
        def sides(random: np.random.Generator, size: tuple[int, ...]) -> tuple[Floats, Floats]:
            change = sign * changes[size[-1]] * math.sqrt((1 + noisy**2) / 2)
            return random.normal(size=size), random.normal(change, noisy, size)

        return sides

    cases = [("normal, equally noisy", changed(1, 1)), ("the noisier side is slower (1 to 5)", changed(5, 1))]
    return [*cases, ("the noisier side is faster (1 to 5)", changed(5, -1))]


def groups(experiments: int) -> Table:
    yield from header("noise", *(f"{trials} trials" for trials in GROUPS))
    for title, sides in false_cases() + [(f"power: {title}", sides) for title, sides in power_cases()]:
        cells = []
        for trials in GROUPS:
            runs = 1 + max(LEAST_RUNS, math.ceil(LEAST_KNOWN / 0.9 / (trials - 1)))
            shares = shares_of_groups(*sides(np.random.default_rng(trials), (experiments, runs, trials)), trials)
            cells.append(" -> ".join(f"{share:.3f}" for share in shares))
        yield row(title, *cells)


def false(experiments: int) -> Table:
    yield from differences(false_cases(), experiments)


def power(experiments: int) -> Table:
    yield from differences(power_cases(), experiments)


def differences(cases: Iterable[tuple[str, Sides]], experiments: int) -> Table:
    yield from header("noise, in pairs", *(f"{trials} trials" for trials in TRIALS))
    for title, sides in cases:
        cells = []
        for trials in TRIALS:
            alone, compared = shares_of_pairs(*sides(np.random.default_rng(trials), (experiments, trials)))
            cells.append(f"{alone:.3f} -> {compared:.3f}")
        yield row(title, *cells)


# Figures of one run


def of_times(experiment: Sequence[float]) -> Estimate:
    return estimate(RUN_STEP_SECONDS, experiment)


def of_shares(experiment: Sequence[float]) -> Estimate:
    return estimate_share(RUN_OVERLAP_RATIO, experiment)


def by_t(values: Floats, truth: float) -> float:
    """The share of experiments whose median or Student interval holds the truth."""
    half_width = scipy.stats.t.ppf(0.975, values.shape[1] - 1) * scipy.stats.sem(values, axis=1)
    middle = np.median(values, axis=1)
    low = np.minimum(values.mean(axis=1) - half_width, middle)
    high = np.maximum(values.mean(axis=1) + half_width, middle)
    return float(np.mean((low <= truth) & (truth <= high)))


def covered(found: Iterable[Estimate], truth: float) -> float:
    return float(
        np.mean([one.low is not None and one.high is not None and one.low <= truth <= one.high for one in found])
    )


def figures(experiments: int) -> Table:
    yield from header("trials are", *(f"{trials} trials" for trials in TRIALS))
    for shape in SHAPES:
        cells = []
        for trials in TRIALS:
            values = 0.05 * trials_of(np.random.default_rng(trials), shape, (experiments, trials), "median")
            share = covered(map(of_times, np.exp(values).tolist()), 1.0)
            cells.append(f"{by_t(values, 0.0):.3f} -> {share:.3f}")
        yield row(f"times: {shape}", *cells)
    for nothing, everything in ((0.5, 20), (2, 8), (20, 0.5)):
        shares = scipy.stats.beta(nothing, everything)
        cells = []
        for trials in TRIALS:
            values = shares.rvs((experiments, trials), random_state=np.random.default_rng(trials))
            share = covered(map(of_shares, values.tolist()), float(shares.median()))
            cells.append(f"{by_t(values, float(shares.median())):.3f} -> {share:.3f}")
        yield row(f"shares: Beta({nothing:g}, {everything:g})", *cells)


# A link


def link(experiments: int) -> Table:
    latency_s, bandwidth = 20e-6, 1e10
    sizes = [2**power for power in range(10, 27, 2)]
    yield from header("noise of each trial", "figure", *(f"{trials} trials" for trials in TRIALS))
    for shape in ("normal", *SKEWED):
        cells: dict[str, list[str]] = {"latency": [], "bandwidth": []}
        for trials in TRIALS:
            random = np.random.default_rng(trials)
            found: dict[str, list[bool]] = {"latency": [], "bandwidth": []}
            for _ in range(experiments):
                # Each trial has luck of its own in what a message and what a byte takes.
                luck = np.exp(0.05 * trials_of(random, shape, (trials, 2), "median"))
                noise = np.exp(random.normal(0, 0.01, (trials, len(sizes))))
                try:
                    fitted = fit_link(
                        [
                            [
                                TimedSize(
                                    messages=1,
                                    wire_bytes=size,
                                    elapsed_s=float((latency_s * of_message + size / bandwidth * of_byte) * factor),
                                )
                                for size, factor in zip(sizes, factors, strict=True)
                            ]
                            for (of_message, of_byte), factors in zip(luck, noise, strict=True)
                        ]
                    )
                except NoLinkFit:
                    continue
                found["latency"].append(within(fitted.latency_s, latency_s))
                found["bandwidth"].append(within(fitted.bandwidth_bytes_per_second, bandwidth))
            for name, held in found.items():
                cells[name].append(f"{np.mean(held):.3f}")
        for name, shares in cells.items():
            yield row(f"5 %, {shape}", name, *shares)


def within(interval: Interval, truth: float) -> bool:
    return interval.low is not None and interval.high is not None and interval.low <= truth <= interval.high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = {"laws": laws, "groups": groups, "false": false, "power": power, "figures": figures, "link": link}
    parser.add_argument("--only", choices=tables, help="one of the tables; all by default")
    parser.add_argument("--experiments", type=int, default=2500, help="of each cell, of `link` a tenth (default: 2500)")
    parser.add_argument("--curves", type=int, default=300, help="of each cell of `laws` (default: 300)")
    words = parser.parse_args()
    for name, table in tables.items():
        if words.only in (None, name):
            print(f"{name}\n")
            count = words.curves if name == "laws" else words.experiments // (10 if name == "link" else 1)
            for line in table(count):
                print(line, flush=True)
            print()


if __name__ == "__main__":
    main()
