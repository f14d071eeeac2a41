"""What one look of an exporter at a run of many ranks costs: on a node, which has a few of the logs, and with all logs.

    python -m tests.benchmarks.exporter_parts.live_look [--ranks N] [--node-ranks N] [--looks N]

CPU time of this process, the median of the looks. "quiet": no log has grown since the look before; "a step": each log
has grown by a step.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.errors import say
from bench.machine.limits.process_limits import require_files
from bench.serve.live.runs import RunLogs, Shown
from bench.store.run_dir import begin
from tests.bench.made.examples import make_case, make_machine
from tests.benchmarks.exporter_parts.logging_ranks import LoggingRanks

STEP_S = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--node-ranks", type=int, default=8)
    parser.add_argument("--looks", type=int, default=5)
    arguments = parser.parse_args()
    require_files(arguments.ranks + 256, "a log for each rank")
    print(f"{'logs':>6} {'series':>8} {'first look':>12} {'quiet':>10} {'a step':>10}")
    for logs in (arguments.node_ranks, arguments.ranks):
        print(_row(arguments.ranks, logs, arguments.looks))


def _row(world: int, logs: int, looks: int) -> str:
    """Return the costs for a folder with so many logs of a run."""
    with tempfile.TemporaryDirectory() as name:
        run = begin(make_case(ranks=world), make_machine(), Path(name))
        try:
            ranks = LoggingRanks(run, STEP_S, range(logs))
            ranks.log_until(STEP_S)
            live = RunLogs(Path(name), on_notice=say, shown=Shown(has_nodes=False))
            first_s, series = _look(live)
            quiet, stepping = [], []
            for number in range(looks):
                quiet.append(_look(live)[0])
                ranks.log_until((number + 2) * STEP_S)
                stepping.append(_look(live)[0])
        finally:
            run.close()
    words = [f"{1e3 * cost_s:.1f} ms" for cost_s in (first_s, median(quiet), median(stepping))]
    return f"{logs:>6} {series:>8} {words[0]:>12} {words[1]:>10} {words[2]:>10}"


def _look(live: RunLogs) -> tuple[float, int]:
    """Return the CPU time of a look, and how many series it finds."""
    begun_s = time.process_time()
    series = len(live.read())
    return time.process_time() - begun_s, series


if __name__ == "__main__":
    main()
