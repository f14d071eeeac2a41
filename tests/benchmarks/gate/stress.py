"""The detector on made series: false alarms by kind of noise, what it finds by kind of change, and its power.

    python -m tests.benchmarks.gate.stress [--kind KIND ...] [--series N] [--nights N] [--seed N] [--processes N]
    python -m tests.benchmarks.gate.stress --power [--within NIGHTS] [--history NIGHTS ...] [--size PERCENT ...] ...

Kinds are those of tests/benchmarks/gate/kinds.py; the default is all. A false alarm of tier 1 is an alert, or a page
that no alert came before; of tier 2 it is a page. Alarms on spikes are counted apart: alerts and pages, of so many
spikes. In parentheses is the one-sided 95 % upper bound. A change counts as reported if that happens within 14 nights.
Seed 1 is to look at while the detector is built, seeds 2 and up to report.

With --power each cell has the share of steps that are confirmed within so many nights, its 95 % interval, and the
median night of the page, n1 being the first night of the step; in brackets the share confirmed by the third night.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

from tests.benchmarks.gate.kinds import KINDS, POWER_KINDS
from tests.benchmarks.gate.made_series import made
from tests.benchmarks.gate.power import HISTORIES, SIZES_PERCENT, power_of, power_rows, shares_head
from tests.benchmarks.gate.scored_series import HORIZON, Tally, per_thousand, tally_of, wilson

ROOT = Path(__file__).parents[3]
T = TypeVar("T")
FREE_HEAD = (
    "| kind | nights | tier 1 / 1,000 | tier 2 / 1,000 | nights up to 60 | tier 1 / 1,000 | tier 2 / 1,000 |"
    " on spikes | reruns | CPU s |\n|---|---|---|---|---|---|---|---|---|---|"
)
CHANGES_HEAD = (
    "| kind | changes | tier 1 | tier 2 | night of the page | reported again | returns, reported so | nights |"
    " false, tier 1 / 1,000 | tier 2 / 1,000 | CPU s |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def one_series(kind: str, seed: int, nights: int, number: int) -> Tally:
    return tally_of(made(KINDS, kind, seed, number, nights=nights))


def free_row(kind: str, tally: Tally) -> str:
    cells = [
        kind,
        str(tally.late_nights),
        *(per_thousand(count, tally.late_nights) for count in tally.late),
        str(tally.early_nights),
        *(per_thousand(count, tally.early_nights) for count in tally.early),
        "{} and {} of {}".format(*tally.on_spikes, tally.spikes) if tally.spikes else "-",
        f"{100 * tally.reruns / tally.trials:.1f} %",
        f"{tally.cpu_s:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def changes_row(kind: str, tally: Tally) -> str:
    nights = tally.early_nights + tally.late_nights
    cells = [
        kind,
        str(tally.changes),
        *("{:.2f} [{:.2f}, {:.2f}]".format(hits / tally.changes, *wilson(hits, tally.changes)) for hits in tally.hits),
        f"{median(tally.delays) + 1:.0f}" if tally.delays else "-",
        str(tally.again),
        f"{tally.back} of {tally.returns}",
        str(nights),
        *(per_thousand(early + late, nights) for early, late in zip(tally.early, tally.late, strict=True)),
        f"{tally.cpu_s:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def each(processes: int, function: Callable[[int], T], numbers: Sequence[int]) -> Iterator[T]:
    """Yield the function's results in order, from so many processes; of one, from this process."""
    if processes == 1:
        yield from map(function, numbers)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(function, numbers, chunksize=5)


def summed(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total.add(tally)
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ", ".join(KINDS).replace("%", "%%")
    parser.add_argument("--kind", nargs="+", choices=KINDS, metavar="KIND", help=f"some of: {names}")
    parser.add_argument("--series", type=int, help="of each kind (default 100, with --power 200)")
    parser.add_argument("--nights", type=int, default=180, help="of each series (default 180)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--power", action="store_true", help="shares of steps that are confirmed")
    parser.add_argument("--within", type=int, default=HORIZON, help="nights that a page may take (default 14)")
    parser.add_argument("--history", type=int, nargs="+", default=HISTORIES, help="nights before a step")
    parser.add_argument("--size", type=int, nargs="+", default=SIZES_PERCENT, help="of steps, in percent")
    arguments = parser.parse_args()
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    print(f"commit {commit.stdout.strip()}; seed {arguments.seed}", flush=True)
    if arguments.power:
        numbers = range(arguments.series or 200)
        print(f"{len(numbers)} series a cell; confirmed within {arguments.within} nights\n", flush=True)
        print(shares_head(arguments.size), flush=True)
        cells = {"histories": arguments.history, "sizes": arguments.size}
        for kind in arguments.kind or POWER_KINDS:
            delays = partial(power_of, kind, arguments.seed, arguments.within, **cells)
            parts = list(each(arguments.processes, delays, numbers))
            print("\n".join(power_rows(kind, parts, **cells)), flush=True)
        return 0
    tallies = {}
    numbers = range(arguments.series or 100)
    print(f"{len(numbers)} series of {arguments.nights} nights of each kind\n\n{FREE_HEAD}", flush=True)
    for kind in arguments.kind or KINDS:
        function = partial(one_series, kind, arguments.seed, arguments.nights)
        tallies[kind] = tally = summed(each(arguments.processes, function, numbers))
        if not tally.changes:
            print(free_row(kind, tally), flush=True)
    changed = {kind: tally for kind, tally in tallies.items() if tally.changes}
    if changed:
        print("\n".join(["", CHANGES_HEAD, *(changes_row(kind, tally) for kind, tally in changed.items())]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
