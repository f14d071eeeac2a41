"""How long the gate takes for a night of many series with its store, and how much memory: `observatory check`'s work.

    python -m tests.benchmarks.gate.store [--cases N] [--figures N] [--nights N] [--rebuilt N]

The states are those of `tests.benchmarks.gate.speed`, in a history in SQLite. A process of its own reads them and the
night's runs, judges, writes verdicts and states, and reads what stands afterwards. Each case has one run in the night,
with bus bandwidths of so many sizes: cases x figures series. 400 cases are 20,000 series.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import tempfile
import time
from pathlib import Path

import msgspec

from bench.gate.check import check_suite
from bench.gate.detector.state import SeriesState
from bench.gate.verdicts import GateState, KnownSeries, SeriesKey, labels_of, packed, save_night
from bench.results.estimate import estimate
from bench.store.history import History
from bench.store.summary import series_of
from collectors.metrics.probes import RUN_COLLECTIVE_BUS_BANDWIDTH
from tests.bench.made.fake_nights import DAY_NS, FIRST_NS, FakeNights
from tests.benchmarks.gate.speed import rebuilt

SUITE = "nightly"


def filled(url: str, cases: int, figures: int, last_night: int, histories: int) -> None:
    """Write a night's runs, and the states that the nights before it left."""
    states = [msgspec.json.decode(rebuilt(seed, last_night), type=SeriesState) for seed in range(histories)]
    generator = random.Random(1)
    sizes = [{"collective": "all_reduce", "algorithm": "ring", "size": str(size)} for size in range(figures)]
    with History(url) as history:
        nights = FakeNights(history, suite=SUITE)
        known: list[KnownSeries] = []
        for case in range(cases):
            estimates = tuple(
                estimate(RUN_COLLECTIVE_BUS_BANDWIDTH, [1 + generator.gauss(0, 0.005) for _ in range(3)], **labels)
                for labels in sizes
            )
            run = nights.add_run(last_night, f"case{case}", (0.1, 0.1, 0.1), estimates=estimates, scaling=())
            series = series_of(run.case, run.hardware)
            for labels in sizes:
                key = SeriesKey(SUITE, f"case{case}", series, RUN_COLLECTIVE_BUS_BANDWIDTH.name, labels_of(labels))
                state = GateState(detector=states[len(known) % len(states)], nights=((0, FIRST_NS),))
                known.append(KnownSeries(key=key, last_run="before", last_ns=FIRST_NS, packed=packed(state)))
        nights.add_record(last_night, done=cases)
        save_night(history, {}, known, [])


def checked(url: str, last_night: int) -> tuple[int, float, float, float]:
    """Check the suite; return its figures, wall and CPU seconds, and this process's largest memory in MB."""
    with History(url) as history:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        now_ns = FIRST_NS + last_night * DAY_NS + DAY_NS // 4
        check = check_suite(history, SUITE, history.suite_runs(10, SUITE), since_ns=None, now_ns=now_ns)
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    assert {verdict.started_ns for verdict in check.verdicts} == {FIRST_NS + last_night * DAY_NS + 1}
    return len(check.verdicts), wall_s, cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--figures", type=int, default=50)
    parser.add_argument("--nights", type=int, default=1000)
    parser.add_argument("--rebuilt", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/history.sqlite"
        # A fresh process each, so that the memory is that of the check alone.
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            pool.apply(filled, (url, arguments.cases, arguments.figures, arguments.nights, arguments.rebuilt))
            figures, wall_s, cpu_s, memory_mb = pool.apply(checked, (url, arguments.nights))
        size_bytes = Path(folder, "history.sqlite").stat().st_size
    print(
        f"{figures} series with {arguments.nights} nights each, in a store of {size_bytes / 1e6:.0f} MB: one more night"
        f" in {wall_s:.1f} s, {cpu_s:.1f} s of CPU time, with {memory_mb:.0f} MB of memory, in one process; load"
        f" {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
