"""What a trace of kineto says, by plain sums over its events: the truth that figures of replayed runs are held against.

Knows nothing of this project: json, lists and loops alone.
"""

import gzip
import json
from decimal import Decimal
from pathlib import Path
from statistics import median

Times = list[tuple[int, int]]
_COPIES = ("gpu_memcpy", "gpu_memset")


def traced_steps(path: Path) -> list[dict[str, int]]:
    """Return of each ProfilerStep, on the device: its length, and how long kernels of each kind ran, in nanoseconds.

    On the device a step begins and ends when all that the host launched before that has ended, and no sooner than on
    the host. A stream runs in order: what it ran before its first kernel whose launch the trace has is from before.
    """
    events = _events(path)
    launched: dict[int, int] = {}
    for event in events:
        if event["cat"] in ("cuda_runtime", "cuda_driver") and "correlation" in event["args"]:
            number = event["args"]["correlation"]
            launched[number] = min(_start(event), launched.get(number, _start(event)))
    work = sorted((event for event in events if event["cat"] in ("kernel", *_COPIES)), key=_start)
    launches: list[int | None] = []
    begun_streams = set()
    for event in work:
        number, stream = event["args"].get("correlation"), event["args"].get("stream")
        if number in launched:
            begun_streams.add(stream)
        launches.append(launched.get(number) if stream in begun_streams else -1)
    marks = [event for event in events if event["cat"] == "user_annotation" and "ProfilerStep#" in event["name"]]
    steps = []
    for mark in sorted(marks, key=_start):
        ends = []
        for at_ns in (_start(mark), _end(mark)):
            pairs = zip(work, launches, strict=True)
            before = [_end(event) for event, launch in pairs if launch is not None and launch < at_ns]
            ends.append(max([at_ns, *before]))
        compute = _clipped([event for event in work if _kind(event) == "compute"], *ends)
        communication = _clipped([event for event in work if _kind(event) == "communication"], *ends)
        both = _length(compute) + _length(communication) - _length(compute + communication)
        steps.append(
            {
                "step": ends[1] - ends[0],
                "compute": _length(compute),
                "communication": _length(communication),
                "overlap": both,
                "exposed_communication": _length(communication) - both,
            }
        )
    return steps


def waiting_ratio(paths: list[Path]) -> float:
    """Return the share of NCCL's kernels' time in which a rank waited for the last one, all but the first collective.

    Every rank calls the same collectives in the same order.
    """
    by_rank = [
        sorted((_start(event), _end(event)) for event in _events(path) if _kind(event) == "communication")
        for path in paths
    ]
    waited = lasted = 0
    for times in list(zip(*by_rank, strict=True))[1:]:
        last = max(start for start, _ in times)
        waited += sum(last - start for start, _ in times)
        lasted += sum(end - start for start, end in times)
    return waited / lasted


def traced_shares(paths: list[Path]) -> dict[str, float]:
    """Return the median share of each kind in a step, over the steps of all traces, and the median step in seconds."""
    steps = [step for path in paths for step in traced_steps(path)]
    shares = {kind: median(step[kind] / step["step"] for step in steps) for kind in steps[0] if kind != "step"}
    return {"step_s": median(step["step"] for step in steps) / 1e9, **shares}


def _events(path: Path) -> list[dict]:  # type: ignore[type-arg]  # As JSON has them.
    with gzip.open(path, "rt") as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    return [{"args": {}, **event} for event in events if event.get("ph") == "X" and "cat" in event]


def _kind(event: dict) -> str:  # type: ignore[type-arg]
    if event["cat"] != "kernel":
        return "other"
    return "communication" if "nccl" in event["name"].lower() else "compute"


def _start(event: dict) -> int:  # type: ignore[type-arg]
    return int(event["ts"] * 1000)


def _end(event: dict) -> int:  # type: ignore[type-arg]
    return _start(event) + int(event["dur"] * 1000)


def _clipped(events: list[dict], start: int, end: int) -> Times:  # type: ignore[type-arg]
    times = [(max(_start(event), start), min(_end(event), end)) for event in events]
    return [(begun, ended) for begun, ended in times if begun < ended]


def _length(times: Times) -> int:
    """Return how long any of them ran; what overlaps counts once."""
    total, reached = 0, 0
    for start, end in sorted(times):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total
