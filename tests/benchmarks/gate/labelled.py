"""The detector beside apache-otava on real series in which people have marked the changes, each replayed online.

    python -m tests.benchmarks.gate.labelled FOLDER --side odd|even [--series N] [--processes N] [--otava-series N]
                                             [--otava-venv FOLDER] [--keep FOLDER] [--no-otava]

tests/benchmarks/gate/labelled_series.py says what the folder holds. Series of odd numbers are there to be looked at
while the detector is built; those of even numbers are to be reported, and no setting may be chosen on them. Intervals
are 2.5 and 97.5 percentiles of a bootstrap over series, paired where two rules are compared.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from tests.benchmarks.detector import HEAD, Bootstrap, interval, row
from tests.benchmarks.gate import otava_runs
from tests.benchmarks.gate.judged_series import Alerts, JudgedSeries, evenly
from tests.benchmarks.gate.labelled_series import counts_of_marks, judged_without_reruns, read_folder

ROOT = Path(__file__).parents[3]
OURS = "tier 2"
RIVALS = {"alone": "Otava", "hold": "Otava + hold"}


def table(series: Sequence[JudgedSeries], rules: dict[str, Callable[[JudgedSeries], Alerts]]) -> str:
    """Return the figures of each rule, and how ours differs from the others."""
    marks = sum(len(one.events) for one in series)
    lines = [f"{len(series)} series, {sum(one.nights for one in series)} nights, {marks} marked changes", "", HEAD]
    bootstrap = Bootstrap(len(series))
    figures = {}
    for name, alarms_of in rules.items():
        counts = np.array([counts_of_marks(one, alarms_of(one)) for one in series], dtype=float)
        figures[name] = bootstrap.figures(counts)
        lines.append(row(name, *figures[name]))
    lines.append("")
    for name in list(rules)[1:]:
        for figure in ("F1", "precision", "recall", "false"):
            difference = float(figures[OURS][0][figure] - figures[name][0][figure])
            low, high = interval(figures[OURS][1][figure] - figures[name][1][figure])
            lines.append(f"- {OURS} - {name}, {figure}: {difference:+.3f} [{low:+.3f}, {high:+.3f}], paired by series")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--side", choices=("odd", "even"), required=True, help="of the series' numbers")
    parser.add_argument("--series", type=int, help="so many, evenly spread (default all)")
    parser.add_argument("--otava-series", type=int, help="so many of these (default all)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--otava-venv", type=Path, metavar="FOLDER")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keeps what Otava was given and answered")
    parser.add_argument("--no-otava", action="store_true")
    arguments = parser.parse_args()
    try:
        labelled = [one for one in read_folder(arguments.folder) if one.number % 2 == (arguments.side == "odd")]
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    print(f"commit {commit.stdout.strip()}; series of {arguments.side} numbers\n")
    with ProcessPoolExecutor(arguments.processes) as pool:
        series = list(pool.map(judged_without_reruns, evenly(labelled, arguments.series)))
    print(table(series, {OURS: lambda one: one.alerts[OURS]}), flush=True)
    if arguments.no_otava:
        return 0
    chosen = evenly(series, arguments.otava_series)
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        python = otava_runs.make_environment((arguments.otava_venv or temporary / "venv").absolute())
        parts = {part: chosen[part :: arguments.processes] for part in range(arguments.processes)}
        found = otava_runs.run(parts, python, (arguments.keep or temporary / "series").absolute(), arguments.processes)
    assert sorted(found) == sorted(one.name for one in chosen)
    rules: dict[str, Callable[[JudgedSeries], Alerts]] = {OURS: lambda one: one.alerts[OURS]}
    for variant, name in RIVALS.items():
        rules[name] = lambda one, variant=variant: found[one.name][variant][0]  # type: ignore[misc]
    print(f"\nThe same beside apache-otava {otava_runs.VERSION}, on the series that it was given:\n")
    print(table(chosen, rules))
    return 0


if __name__ == "__main__":
    sys.exit(main())
