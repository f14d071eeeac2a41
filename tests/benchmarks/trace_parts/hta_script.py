"""What HolisticTraceAnalysis says of traces, as JSON; runs in its environment and knows nothing of ours.

    python hta_script.py TRACE ...

The traces are those of ranks 0, 1, ...
"""

from __future__ import annotations

import json
import logging
import math
import resource
import sys
import time
import warnings

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)

# After the switches: what it warns of while it is imported is no answer.
from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]  # noqa: E402


def _cpu_s() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _known(percent: float) -> float | None:
    return None if math.isnan(percent) else float(percent)


def main() -> None:
    begun_s, begun_cpu_s = time.perf_counter(), _cpu_s()
    analysis = TraceAnalysis(trace_files=dict(enumerate(sys.argv[1:])), trace_dir="/")
    breakdown = analysis.get_temporal_breakdown(visualize=False)
    overlap = analysis.get_comm_comp_overlap(visualize=False)
    wall_s, cpu_s = time.perf_counter() - begun_s, _cpu_s() - begun_cpu_s
    ranks = [
        {
            "rank": int(of_time["rank"]),
            "idle_us": float(of_time["idle_time(us)"]),
            "compute_us": float(of_time["compute_time(us)"]),
            "non_compute_us": float(of_time["non_compute_time(us)"]),
            "kernel_us": float(of_time["kernel_time(us)"]),
            "overlap_percent": _known(of_overlap["comp_comm_overlap_pctg"]),
        }
        for of_time, of_overlap in zip(breakdown.to_dict("records"), overlap.to_dict("records"), strict=True)
    ]
    peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"ranks": ranks, "wall_s": wall_s, "cpu_s": cpu_s, "peak_bytes": peak_bytes}))


if __name__ == "__main__":
    main()
