"""What kept windows of ranks say: whether they are a device's, their kernels' time, and how far ends lie apart.

    python -m tests.gpu.scripts.windows --device cuda --files A.npz,B.npz

Ends: of each all_reduce on all the ranks, which have one clock; the first of a window is left out. Prints JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

from collectors.traces.cross_rank.matching import match
from collectors.traces.timeline import Timeline, load
from tests.gpu.scripts.device import device_of_words


def main() -> None:
    arguments = device_of_words(("files", str, ""))
    timelines = [load(Path(name)) for name in arguments.files.split(",")]
    apart_ns = ends_apart_ns(timelines) if len(timelines) > 1 else []
    print(
        json.dumps(
            {
                "is_device": all(one.is_device for one in timelines),
                "steps": min(len(one.steps()) for one in timelines),
                "compute_work_s": [_work_s(one) for one in timelines],
                "copies": sorted({name for one in timelines for name in _copies(one)}),
                "all_reduces": len(apart_ns),
                "apart_ns": median(apart_ns) if apart_ns else None,
                "widest_apart_ns": max(apart_ns, default=None),
            }
        )
    )


def ends_apart_ns(timelines: list[Timeline]) -> list[int]:
    """Of each all_reduce, from the first to the last rank's end."""
    of_rank = {one.rank: one for one in timelines}
    found = []
    for one in match(timelines).matched:
        if one.collective == "all_reduce" and not one.is_first and len(one.ranks) == len(timelines):
            ends = [int(of_rank[rank].end_ns[row]) for rank, row in zip(one.ranks, one.rows, strict=True)]
            found.append(max(ends) - min(ends))
    return found


def _work_s(timeline: Timeline) -> float:
    chosen = timeline.of_kind("compute")
    return float((timeline.end_ns[chosen] - timeline.start_ns[chosen]).sum()) / 1e9


def _copies(timeline: Timeline) -> set[str]:
    return {timeline.names[number] for number in timeline.name} & {
        name for name in timeline.names if name.startswith("Memcpy")
    }


if __name__ == "__main__":
    main()
