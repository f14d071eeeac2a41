"""How long a night of many series takes: their stored states read, one more night judged, and the states written.

    python -m tests.benchmarks.gate.speed [--series N] [--nights N] [--processes N] [--rebuilt N]

Each series has its own noise and history, and the state that judging all of it leaves. So as not to judge so many,
`--rebuilt` series are judged from their first night on, and each is then used under several names; the time of that, a
full rebuild, is printed too, for all series by proportion. `tests.benchmarks.gate.store` measures it with a store, as
`observatory check` does it.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import resource
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import msgspec

from bench.gate.detector.detector import judge
from bench.gate.detector.night import Night, TrialSample
from bench.gate.detector.state import SeriesState


def night_of(number: int, generator: random.Random, sd: float) -> Night:
    """Return a night of three trials around 1 s, with effects of night and trial of this deviation."""
    effect = generator.gauss(0, sd)
    return Night(
        number=number,
        trials=tuple(
            TrialSample(log_median=effect + generator.gauss(0, sd), mad=3 * sd, steps=30, placement="pool")
            for _ in range(3)
        ),
    )


def rebuilt(seed: int, nights: int) -> bytes:
    """Return the state that judging a whole history leaves."""
    generator = random.Random(seed)
    sd = math.exp(generator.uniform(math.log(0.002), math.log(0.01)))
    state: SeriesState | None = None
    for number in range(nights):
        state = judge(state, night_of(number, generator, sd)).state
    return msgspec.json.encode(state)


def judged(states: Sequence[bytes], nights: Sequence[Night]) -> tuple[float, float, float, float]:
    """Return the seconds of CPU for reading, judging and writing the states, one by one, and the largest memory, MB."""
    decoder, encoder = msgspec.json.Decoder(SeriesState), msgspec.json.Encoder()
    read_s = judged_s = written_s = 0.0
    for stored, night in zip(states, nights, strict=True):
        began_s = time.process_time()
        state = decoder.decode(stored)
        after_read_s = time.process_time()
        after = judge(state, night).state
        after_judge_s = time.process_time()
        encoder.encode(after)
        read_s += after_read_s - began_s
        judged_s += after_judge_s - after_read_s
        written_s += time.process_time() - after_judge_s
    return read_s, judged_s, written_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=5000)
    parser.add_argument("--nights", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rebuilt", type=int, default=20)
    arguments = parser.parse_args()
    began_s = time.process_time()
    histories = [rebuilt(seed, arguments.nights) for seed in range(arguments.rebuilt)]
    rebuild_s = (time.process_time() - began_s) / arguments.rebuilt
    states = [histories[number % len(histories)] for number in range(arguments.series)]
    generator = random.Random(1)
    nights = [night_of(arguments.nights, generator, 0.005) for _ in states]
    parts = [
        (states[part :: arguments.processes], nights[part :: arguments.processes])
        for part in range(arguments.processes)
    ]
    with ProcessPoolExecutor(arguments.processes) as pool:
        # The first call of each process loads scipy, as the first night of a process does; it is part of the time.
        began_s = time.perf_counter()
        found = list(pool.map(judged, *zip(*parts, strict=True)))
        elapsed_s = time.perf_counter() - began_s
    *times, memories_mb = zip(*found, strict=True)
    reading_s, judging_s, writing_s = (sum(parts) for parts in times)
    print(
        f"{arguments.series} series with {arguments.nights} nights each: one more night in {elapsed_s:.1f} s on "
        f"{arguments.processes} processes, beside a load of {os.getloadavg()[0]:.1f}"
    )
    print(
        f"CPU time of all processes: reading states {reading_s:.2f} s, judging {judging_s:.2f} s "
        f"({1e3 * judging_s / arguments.series:.2f} ms a series), writing {writing_s:.2f} s; "
        f"{(reading_s + judging_s + writing_s) / arguments.processes:.1f} s for each, with at most "
        f"{max(memories_mb):.0f} MB of memory"
    )
    print(f"a state is {sum(map(len, states)) / len(states):.0f} bytes")
    print(
        f"a rebuild from the whole history: {rebuild_s:.2f} s of CPU a series, of {arguments.rebuilt} measured; "
        f"{rebuild_s * arguments.series / arguments.processes / 60:.0f} minutes for all on so many processes"
    )


if __name__ == "__main__":
    main()
