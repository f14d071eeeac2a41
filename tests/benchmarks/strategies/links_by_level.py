"""Strategies in a network in a box with two levels of links: predicted and measured, level by level.

For each case, what a rank passes over each mesh axis in a step, the bytes over the busiest link, the time of the axis's
transfers replayed alone, and the time of a step. Tables in Markdown, as docs/measured/links_by_level.md shows them. It
needs Linux, root and iproute2.

    python -m tests.benchmarks.strategies.links_by_level [--nodes N ...] [--rate MBIT ...] [--all] [--replays N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.machine import machine
from bench.results.estimate import mean_interval
from tests.slow.ranks.levels_in_box import GLOO_HEADER_BYTES, SHAPE, InBox, Setting, measure

STRATEGIES = ("three_d", "hsdp")
OTHERS = ("ddp", "tensor_parallel", "one_f_one_b", "interleaved", "ring_attention", "ulysses")
LAYERS = {"interleaved": 8}
"""Where the usual number does not divide among the stages."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rate", type=float, nargs="+", default=[200, 100])
    parser.add_argument("--all", action="store_true", help="further strategies, on the first setting only")
    parser.add_argument("--replays", type=int, default=7)
    arguments = parser.parse_args()
    settings = [Setting(nodes=nodes, rate_mbit=rate) for nodes in arguments.nodes for rate in arguments.rate]
    for setting in settings:
        strategies = (*STRATEGIES, *(OTHERS if arguments.all and setting == settings[0] else ()))
        cases = [setting.case(strategy, layers=LAYERS.get(strategy, SHAPE.layers)) for strategy in strategies]
        with tempfile.TemporaryDirectory() as folder:
            measured = measure(setting, cases, Path(folder), replays=arguments.replays)
        _print(setting, measured)
    print(f"on {machine.read().hardware('cpu')}; load of the last 5 minutes {os.getloadavg()[1]:.0f}")


def _print(setting: Setting, measured: list[InBox]) -> None:
    print(f"{setting.nodes} nodes, {setting.rate_mbit:g} Mbit/s: {measured[0].links.basis}\n")
    print(
        "| strategy | axis | level | bytes of a rank | busiest link | predicted | alone / predicted | by one link"
        " | by sweeps in turn |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for one in measured:
        for axis in one.replayed:
            print(f"| {' | '.join(_cells(one, axis))} |")
    print("\n| strategy | step predicted | measured |\n|---|---|---|")
    for one in measured:
        print(f"| `{one.case.strategy}` | {1e3 * one.predicted_step().step_s:.0f} ms | {1e3 * one.step_s():.0f} ms |")
    print(flush=True)


def _cells(one: InBox, axis: str) -> Iterator[str]:
    yield from (f"`{one.case.strategy}`", axis, "cluster" if one.is_across(axis) else "node")
    expected, counted = (
        {collective: size for (collective, of, _), size in each.items() if of == axis}
        for each in (one.predicted_bytes(), one.counted_bytes())
    )
    yield f"{sum(expected.values()):,}" if counted == expected else f"counted {counted}, predicted {expected}"
    place = int(one.is_across(axis))  # The busiest rank's bytes, or the busiest node's.
    link, passed = one.predicted_wire_bytes(axis)[place], one.counted_wire_bytes(axis)[place]
    headers, rest = divmod(passed - link, GLOO_HEADER_BYTES)
    yield f"{link:,} + {headers} headers" if headers >= 0 and not rest else f"counted {passed:,}, predicted {link:,}"
    replays_s, predicted_s = one.replays_s(axis), one.predicted_replay_s(axis)
    yield f"{1e3 * predicted_s:.1f} ms"
    yield _ratio(replays_s, predicted_s)
    if one.is_across(axis):
        yield from ("-", "-")
    else:
        yield _ratio(replays_s, one.replay_by_one_link_s(axis))
        yield _ratio(replays_s, one.replay_by_turns_s(axis))


def _ratio(times_s: list[float], predicted_s: float) -> str:
    """Median, and interval of the mean."""
    ratios = [time_s / predicted_s for time_s in times_s]
    low, high = mean_interval(ratios) or (ratios[0], ratios[0])
    return f"{statistics.median(ratios):.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    main()
