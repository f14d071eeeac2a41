"""What our own analysis says of traces, and what that took, as JSON: the counterpart of `hta_script.py`.

    python -m tests.benchmarks.trace_parts.traces_script [--python-alone] TRACE ...

It reads and divides as `observatory analyse summary` does. --python-alone: without the scanner in C; one trace only.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from bench.results.timelines import read_files
from collectors.traces.analyzers.summary import summary
from collectors.traces.reading.decoders import decode_in_python
from collectors.traces.reading.reader import read_trace
from collectors.traces.timeline import Timeline


def main() -> None:
    imported_bytes = _peak_bytes()
    python_alone = sys.argv[1] == "--python-alone"
    paths = [Path(argument) for argument in sys.argv[1 + python_alone :]]
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    timelines = (read_trace(paths[0], decoders=(decode_in_python,)),) if python_alone else read_files(paths)
    read_bytes = _peak_bytes()
    shares = [share for share in summary(timelines).shares if share.stretch.part == "trace"]
    cpu_s, wall_s = time.process_time() - begun_cpu_s, time.perf_counter() - begun_s
    ranks = [
        {
            "rank": share.rank,
            "compute_ns": share.breakdown.compute_ns,
            "communication_ns": share.breakdown.communication_ns,
            "overlap_ns": share.breakdown.overlap_ns,
        }
        for share in shares
    ]
    answer = {"ranks": ranks, "wall_s": wall_s, "cpu_s": cpu_s, "imported_bytes": imported_bytes}
    columns_bytes = sum(map(_columns_bytes, timelines))
    print(json.dumps({**answer, "read_bytes": read_bytes, "columns_bytes": columns_bytes}))


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _columns_bytes(timeline: Timeline) -> int:
    return sum(getattr(getattr(timeline, name), "nbytes", 0) for name in Timeline.__dataclass_fields__)


if __name__ == "__main__":
    main()
