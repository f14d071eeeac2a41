"""How long the gate takes for a night of many series with its store: states read, runs read, judged, and all written.

    python -m tests.benchmarks.gate.store [--cases N] [--figures N] [--nights N] [--rebuilt N]

As `tests.benchmarks.gate.speed`, whose states it takes, but by `judge_nights` on a history in SQLite, in one process.
Each
case has one run in the night, with bus bandwidths of so many sizes: cases x figures series.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

import msgspec

from bench.gate.detector.state import SeriesState
from bench.gate.nightly import judge_nights
from bench.gate.verdicts import GateState, KnownSeries, SeriesKey, labels_of, save_night
from bench.results.estimate import estimate
from bench.store.history import History
from bench.store.summary import series_of
from collectors.metrics.probes import RUN_COLLECTIVE_BUS_BANDWIDTH
from tests.bench.made.fake_nights import DAY_NS, FIRST_NS, FakeNights
from tests.benchmarks.gate.speed import rebuilt

SUITE = "nightly"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--figures", type=int, default=50)
    parser.add_argument("--nights", type=int, default=1000)
    parser.add_argument("--rebuilt", type=int, default=20)
    arguments = parser.parse_args()
    states = [rebuilt(seed, arguments.nights) for seed in range(arguments.rebuilt)]
    generator = random.Random(1)
    sizes = [{"collective": "all_reduce", "algorithm": "ring", "size": str(size)} for size in range(arguments.figures)]
    with tempfile.TemporaryDirectory() as folder, History(f"sqlite:///{folder}/history.sqlite") as history:
        nights = FakeNights(history, suite=SUITE)
        known: list[KnownSeries] = []
        for case in range(arguments.cases):
            estimates = tuple(
                estimate(RUN_COLLECTIVE_BUS_BANDWIDTH, [1 + generator.gauss(0, 0.005) for _ in range(3)], **labels)
                for labels in sizes
            )
            run = nights.add_run(arguments.nights, f"case{case}", (0.1, 0.1, 0.1), estimates=estimates, scaling=())
            series = series_of(run.case, run.hardware)
            for labels in sizes:
                key = SeriesKey(SUITE, f"case{case}", series, RUN_COLLECTIVE_BUS_BANDWIDTH.name, labels_of(labels))
                detector = msgspec.json.decode(states[len(known) % len(states)], type=SeriesState)
                state = GateState(detector=detector, nights=((0, FIRST_NS),))
                known.append(KnownSeries(key=key, last_run="before", last_ns=FIRST_NS, state=state))
        save_night(history, {}, known, [])
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        verdicts = judge_nights(history, SUITE)
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        size_bytes = Path(folder, "history.sqlite").stat().st_size
    assert len(verdicts) == len(known)
    assert {one.started_ns for one in verdicts} == {FIRST_NS + arguments.nights * DAY_NS + 1}
    print(
        f"{len(verdicts)} series with {arguments.nights} nights each, in a store of {size_bytes / 1e6:.0f} MB: one more"
        f" night in {wall_s:.1f} s, {cpu_s:.1f} s of CPU time, in one process"
    )


if __name__ == "__main__":
    main()
