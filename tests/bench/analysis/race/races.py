"""How often a race names a false winner, and after how many rounds it names the true one; docs/measured/races.md.

    python -m tests.bench.analysis.race.races [--only equals|tied|rounds] [--seeds 1000]

Everything is simulated, by fixed seeds, and put through `bench.analysis.race.looks.stand`. Tables in Markdown:
`equals`, races of equal cases, each winner of which is false; `tied`, likewise with slower ones behind two equal ones,
in a fourth as many races; `rounds`, in a tenth, races with a faster case, and how they ended.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from bench.analysis.race.looks import MOST_ROUNDS, stand
from tests.bench.analysis.race.noises import KINDS, costs_of
from tests.benchmarks.coverage import header, row

CASES = (2, 4)
TIED = [1.0, 1.0, 1.3, 1.3]
"""Two equal cases in front of two that are soon dropped."""
RATIOS = (1.03, 1.05, 1.1, 1.3, 2.0)


def named(kind: str, ratios: Sequence[float], seeds: int) -> float:
    """Return the share of races that name a winner, which is false where the first cases are equal."""
    return sum(stand(costs_of(kind, ratios, seed)).winner is not None for seed in range(seeds)) / seeds


def ends(kind: str, ratios: Sequence[float], seeds: int) -> tuple[float, float, float | None]:
    """Return the shares of races that named the first case and that named another one, and the rounds in the middle."""
    right = wrong = 0
    rounds: list[int] = []
    for seed in range(seeds):
        standing = stand(costs_of(kind, ratios, seed))
        right += standing.winner == "c0"
        wrong += standing.winner not in ("c0", None)
        rounds.append(standing.rounds if standing.winner == "c0" else MOST_ROUNDS + 1)
    middle = median(rounds)
    return right / seeds, wrong / seeds, None if middle > MOST_ROUNDS else middle


def equals_table(seeds: int) -> Iterator[str]:
    yield from header("noise", *(f"{cases} equal cases" for cases in CASES))
    for kind in KINDS:
        yield row(kind, *(f"{100 * named(kind, [1.0] * cases, seeds):.1f} %" for cases in CASES))


def tied_table(seeds: int) -> Iterator[str]:
    yield from header("noise", "2 equal cases and 2 that are 30 % slower")
    for kind in KINDS:
        yield row(kind, f"{100 * named(kind, TIED, seeds):.1f} %")


def rounds_table(seeds: int) -> Iterator[str]:
    yield from header("noise", *(f"{100 * (ratio - 1):.0f} % faster" for ratio in RATIOS))
    for kind in KINDS:
        cells = []
        for ratio in RATIOS:
            right, wrong, middle = ends(kind, [1.0, ratio, ratio, ratio], seeds)
            after = "" if middle is None else f", {middle:.0f} rounds"
            cells.append(f"{100 * right:.0f} %{after}" + (f", wrong {100 * wrong:.1f} %" if wrong else ""))
        yield row(kind, *cells)


def main(options: Mapping[str, object]) -> None:
    seeds = int(str(options["seeds"]))
    if options["only"] in (None, "equals"):
        for line in equals_table(seeds):
            print(line, flush=True)
        print()
    if options["only"] in (None, "tied"):
        for line in tied_table(max(1, seeds // 4)):
            print(line, flush=True)
        print()
    if options["only"] in (None, "rounds"):
        for line in rounds_table(max(1, seeds // 10)):
            print(line, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("equals", "tied", "rounds"))
    parser.add_argument("--seeds", type=int, default=1000)
    main(vars(parser.parse_args()))
