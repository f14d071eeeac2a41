"""How often `observatory suite bisect` names the right commit on this machine: made histories with a planted sleep.

    .venv/bin/python -m tests.benchmarks.gate.planted_commits --share 0.2 --histories 10

Each history has some commits of this program, one of which makes each step of `single` slower by the share; the walk is
the command's own, on real ranks. On a busy machine `--base-ms` makes all commits sleep, so that others disturb a
smaller part of a step. Prints a line for each history, and how many were right, unsure and wrong.

    .venv/bin/python -m tests.benchmarks.gate.planted_commits --share 0.2 --histories 1000 --simulated 0.05

draws trials that differ by this standard deviation (of logarithms) instead of running them; the pairs' intervals and
the walk are the command's own.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.analysis.compare.bisect import Bisected, bisect, most_measured
from bench.analysis.compare.commit_pairs import CommitPairs, commits_between
from bench.gate.cause.attribution import MeasuredChange, change_of_pairs
from bench.gate.verdicts import SeriesKey
from bench.session.measure import CaseOrder, TrialSettings
from bench.session.session import open_session
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.examples import make_case
from tests.bench.made.planted_trees import plant

LIMIT_S = 120.0


def simulated(arguments: argparse.Namespace, chance: random.Random) -> tuple[Bisected, bool]:
    """Return the end of one walk over commits whose trials are drawn, and whether it named the planted commit."""
    commits = [f"c{number}" for number in range(arguments.commits + 1)]
    planted_at = chance.randrange(1, arguments.commits + 1)
    size = math.log1p(arguments.share)

    def trials(commit: str) -> list[float]:
        level = size * (int(commit[1:]) >= planted_at)
        return [level + chance.gauss(0.0, arguments.simulated) for _ in range(arguments.pairs)]

    def measure(before: str, after: str) -> MeasuredChange:
        change = change_of_pairs(trials(before), trials(after))
        assert change is not None, "as many pairs as the command measures are enough"
        return change

    found = bisect(commits, measure, direction=1, suspected=size)
    return found, found.commit == commits[planted_at]


def simulated_counts(arguments: argparse.Namespace) -> dict[str, int]:
    """Return how many simulated walks had each end, of which the first ten are also printed."""
    chance = random.Random(arguments.seed)
    counts = {"right": 0, "unsure": 0, "environment": 0, "wrong": 0}
    for number in range(arguments.histories):
        found, is_right = simulated(arguments, chance)
        counts["right" if is_right else "wrong" if found.outcome == "commit" else found.outcome] += 1
        if number == 9:
            print("the first 10: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return counts


def main() -> int:
    """Walk over the histories; return 0 unless a commit was named wrongly."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=0.2, help="of a step that the planted sleep adds")
    parser.add_argument("--histories", type=int, default=10)
    parser.add_argument("--commits", type=int, default=6, help="that may have made the change")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--base-ms", type=float, default=0.0, help="that a step of every commit sleeps")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--simulated", type=float, metavar="SD", help="draw trials that differ so much")
    arguments = parser.parse_args()
    if arguments.simulated is not None:
        simulated_ends = simulated_counts(arguments)
        print(", ".join(f"{count} {outcome}" for outcome, count in simulated_ends.items()))
        return 0
    chance = random.Random(arguments.seed)
    counts = {"right": 0, "unsure": 0, "environment": 0, "wrong": 0}
    with tempfile.TemporaryDirectory(prefix="planted-") as place:
        folder = Path(place)
        with open_session(
            runs=folder / "runs",
            store_url=f"sqlite:///{folder / 'history.sqlite'}",
            tell=lambda line: print(f"  {line}", file=sys.stderr, flush=True),
            work="walks",
        ) as session:
            (folder / "runs").mkdir()
            case = make_case("single", 1, trials=arguments.pairs, steps=arguments.steps, warm_up=1, trace_steps=0)
            order = CaseOrder(case=case, title="single", settings=TrialSettings(limit_s=LIMIT_S))
            with session.measure([order]) as measured:
                (summary,) = session.keep(measured).summaries
            base_s = arguments.base_ms / 1000
            step_s = base_s + median(
                next(each for each in summary.estimates if each.metric == RUN_STEP_SECONDS.name).trials
            )
            session.stop_engine()
            print(f"a step takes {1000 * step_s:.1f} ms, and {arguments.share:.0%} of it is planted", flush=True)
            key = SeriesKey(suite="made", case="single", series="", metric=RUN_STEP_SECONDS.name)
            for number in range(arguments.histories):
                planted_at = chance.randrange(1, arguments.commits + 1)
                sleeps_s = {0: base_s, planted_at: base_s + arguments.share * step_s}
                made = plant(folder / f"history{number}", arguments.commits + 1, sleeps_s)
                good, bad = made.commits[0], made.commits[-1]
                commits = (good, *commits_between(made.folder, good, bad))
                by_pairs = CommitPairs(
                    session=session, order=order, key=key, repository=made.folder, pairs=arguments.pairs
                )
                begun_s = time.monotonic()
                found = bisect(commits, by_pairs.measure, direction=1, suspected=math.log1p(arguments.share))
                outcome: str = found.outcome if found.outcome != "commit" else "wrong"
                if found.commit == made.commits[planted_at]:
                    outcome = "right"
                counts[outcome] += 1
                assert found.measured <= most_measured(len(commits) - 1)
                print(
                    f"history {number}: {outcome}, {found.measured} of {most_measured(len(commits) - 1)} in"
                    f" {time.monotonic() - begun_s:.0f} s: {found.reason}",
                    flush=True,
                )
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
