"""Made-up nights of results in a real Prometheus, for a look at dashboards that look back for weeks.

They are the demonstration's, a little better or worse each night; the step of the series that its gate finds worse is
so since as many nights. Ctrl-C or SIGTERM ends it.

    python -m tests.stack.pages.nights [NIGHTS]
"""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.serve.demo import DAY_S, SERIES, made_results, made_suites
from collectors.metrics.registry import SHOWN
from collectors.prometheus.exposition import Owned
from tests.stack.pages.past import create_blocks, exposed
from tests.support.servers import PrometheusServer, program, started_server

NIGHTS = 31
SCRAPE_S = 6 * 3600
"""Seldom, so that weeks are soon written; Prometheus is told to look back for longer than that."""
NOISE_RATIO = 0.006
WORSE_NIGHTS, WORSE_RATIO = 5, 0.058
"""As the demonstration's verdict says of `SERIES`."""
_OF_TIME = {metric.name: metric for metric in SHOWN if metric.scope == "run" and metric.unit != "bytes"}
_TARGET = 'cluster="west",instance="results:9464",job="observatory"'


def main(nights: int) -> None:
    # Whoever ends it, the server that it started ends with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        contextlib.suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory(prefix="observatory-nights-") as name,
        made_nights(Path(name), nights) as (prometheus, ended_s),
    ):
        print(f"{prometheus.url}, until {time.strftime('%F %T', time.localtime(ended_s))}", flush=True)
        signal.pause()


@contextlib.contextmanager
def made_nights(folder: Path, nights: int = NIGHTS) -> Iterator[tuple[PrometheusServer, float]]:
    """Give a Prometheus that has the newest of the nights, and when they ended, in Unix seconds."""
    ended_s = time.time() // 3600 * 3600 - 3 * 3600  # Old enough that promtool puts all of it into blocks.
    for night in range(NIGHTS - nights, NIGHTS):
        text = folder / "night.txt"
        text.write_text("".join(_lines(night, ended_s - (NIGHTS - night) * DAY_S)))
        create_blocks(text, folder / "data")
    config = folder / "prometheus.yml"
    config.write_text("{}")
    words = (
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--query.lookback-delta={SCRAPE_S + 3600}s",
    )
    with started_server(program("prometheus", "prometheus"), *words, output=folder / "output") as port:
        yield PrometheusServer(port=port), ended_s


def _lines(night: int, begun_s: float) -> Iterator[str]:
    """Yield the samples of a night as OpenMetrics: its results stand until the next one's."""
    shown: dict[str, list[str]] = {}
    results = (_of_night(owned, night) for owned in made_results(begun_s - 3600))
    for series, value in exposed([*results, *made_suites(begun_s, 900.0)]):
        name, brace, labels = series.partition("{")
        there = f"{name}{{{_TARGET},{labels}" if brace else f"{name}{{{_TARGET}}}"
        shown.setdefault(name, []).extend(
            f"{there} {value} {begun_s + at_s:.0f}\n" for at_s in range(0, int(DAY_S), SCRAPE_S)
        )
    for lines in shown.values():
        yield from lines
    yield "# EOF\n"


def _of_night(owned: Owned, night: int) -> Owned:
    sample, owner = owned
    metric = _OF_TIME.get(sample.metric)
    if metric is None or metric.better is None:
        return owned
    series = owner.get("series", "")
    factor = 1 + random.Random(f"{series} {night}").gauss(0, NOISE_RATIO)
    if series == SERIES and night < NIGHTS - WORSE_NIGHTS:
        factor /= 1 + WORSE_RATIO
    value = sample.value * factor if metric.better == "lower" else sample.value / factor
    return msgspec.structs.replace(sample, value=value), owner


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else NIGHTS)
