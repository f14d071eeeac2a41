"""How long Prometheus takes for the slowest query of each dashboard's page, of a fleet of nodes with 8 GPUs.

A made-up hour of the fleet, in which two runs go on and results are shown, is written into a real Prometheus, and each
page is asked for that hour as Grafana does, which draws at most 780 points on a line, no two nearer than a scrape; rows
that are collapsed at first included. Each query is asked several times, after others of the page; its median counts.

    python -m tests.benchmarks.exporter_parts.pages [--nodes N] [--scrape-seconds N] [--times N]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median

from dashboards.board import BOARDS
from dashboards.render import CHECKOUT, RENDERED
from tests.stack.pages.asking import Page
from tests.stack.pages.past import PART_S, Part, Past, made_past

POINTS = 780
"""Half of a screen of 1,600 pixels, less an axis."""
PROMISE_MS = 1000.0


def main() -> None:
    """Print a line for each dashboard: the median of its slowest query and of all its queries together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--scrape-seconds", type=int, default=15)
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args()
    parts: tuple[Part, ...] = tuple("two runs" for _ in range(3600 // PART_S))
    with (
        tempfile.TemporaryDirectory() as folder,
        made_past(Path(folder), nodes=given.nodes, scrape_s=given.scrape_seconds, parts=parts) as past,
    ):
        print(f"{given.nodes} nodes, scraped each {given.scrape_seconds} s; medians of {given.times}")
        for name in BOARDS:
            _report(name, past, given.times)


def _report(name: str, past: Past, times: int) -> None:
    page = Page(
        dashboard=json.loads((CHECKOUT / RENDERED / f"{name}.json").read_text()),
        prometheus=past.prometheus,
        end_s=past.begun_s + len(past.parts) * PART_S - past.scrape_s,
        back_s=len(past.parts) * PART_S,
        scrape_s=past.scrape_s,
        chosen={},
        points=POINTS,
    )
    rounds = list(zip(*(page.answers() for _ in range(times)), strict=True))
    slowest = max(rounds, key=lambda answers: median(answer.elapsed_s for answer in answers))
    slowest_ms, all_ms = (
        1e3 * sum(median(answer.elapsed_s for answer in answers) for answers in asked) for asked in ([slowest], rounds)
    )
    word = "kept" if slowest_ms <= PROMISE_MS else "broken"
    print(
        f"{page.dashboard['title']}: {len(rounds)} queries in {all_ms:,.0f} ms; the slowest takes {slowest_ms:,.0f} ms"
        f" ({slowest[0].panel}, {slowest[0].samples:,} samples); the promise of {PROMISE_MS:,.0f} ms is {word}",
        flush=True,
    )


if __name__ == "__main__":
    main()
