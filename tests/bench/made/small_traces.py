"""Small traces of ranks whose figures are known, as Timelines and as the files that kineto writes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from collectors.traces.timeline import About, Call, Timeline, save
from tests.support.timelines import Span, timeline_of

BEGINS_NS = 1_700_000_000_000_000_000
MS = 1_000_000


def small_timeline(rank: int, *, ranks: int = 2, about: About | None = None) -> Timeline:
    """Two steps of 10 ms, in each a matrix product of 4 ms and an all_reduce of 3 ms, of which 1 ms is overlap."""
    spans = []
    for step in range(2):
        at_ns = BEGINS_NS + step * 10 * MS
        call = Call(collective="all_reduce", group="0", ranks=tuple(range(ranks)), dtype="float32", given_elements=1024)
        spans += [
            Span(name=f"ProfilerStep#{step}", kind="step", start_ns=at_ns, end_ns=at_ns + 10 * MS, stream=1),
            Span(
                name="cudaLaunchKernel",
                kind="launch",
                start_ns=at_ns,
                end_ns=at_ns + 1000,
                stream=1,
                correlation=10 * step + 1,
            ),
            Span(
                name="gemm",
                kind="compute",
                start_ns=at_ns + MS,
                end_ns=at_ns + 5 * MS,
                stream=7,
                correlation=10 * step + 1,
            ),
            Span(
                name="ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                kind="communication",
                start_ns=at_ns + 4 * MS,
                end_ns=at_ns + 7 * MS,
                stream=20,
                call=call,
                sequence=step,
            ),
        ]
    return timeline_of(spans, rank=rank, is_device=True, about=about or About(world_size=ranks))


def write_timelines(folder: Path, *ranks: int, of: int = 2) -> list[Path]:
    """A file of ours for each of the ranks."""
    paths = [folder / f"rank{rank}.timeline.npz" for rank in ranks]
    for rank, path in zip(ranks, paths, strict=True):
        save(small_timeline(rank, ranks=of), path)
    return paths


def write_kineto(path: Path, rank: int, *, ranks: int = 2) -> Path:
    """One such trace as kineto writes it, packed where the name says so."""
    timeline = small_timeline(rank, ranks=ranks)
    events = []
    for place, kind in enumerate(timeline.kind):
        name = timeline.names[timeline.name[place]]
        events.append(
            {
                "ph": "X",
                "cat": ("kernel", "kernel", "", "", "user_annotation", "cuda_runtime", "")[kind],
                "name": name,
                "pid": 0,
                "tid": int(timeline.stream[place]),
                "ts": int(timeline.start_ns[place]) // 1000,
                "dur": int(timeline.end_ns[place] - timeline.start_ns[place]) // 1000,
                "args": {"correlation": int(timeline.correlation[place]), "stream": int(timeline.stream[place])},
            }
        )
    document = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks},
        "traceEvents": events,
    }
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
