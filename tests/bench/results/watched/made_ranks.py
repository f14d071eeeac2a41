"""Made rank files of watched jobs: ranks that compute and wait for each other as DDP's and FSDP2's do, with noise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Waits = Literal["ddp", "fsdp"]
LAYERS = 4
MEANS_MS = {"data": 2.0, "forward": 10.0, "backward": 20.0, "optimizer": 3.0, "rest": 1.0}
NOISE = 0.08
HICCUP = 0.01
START_NS = 5 * 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A rank that is late by so many milliseconds in each step. layer: of forward or backward, from 0."""

    rank: int
    phase: str
    late_ms: float = 10.0
    layer: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeSteps:
    """Milliseconds of each phase, (ranks, steps), and the ends of the steps on the host's clock."""

    phases: dict[str, NDArray[np.float64]]
    step: NDArray[np.float64]
    end: NDArray[np.float64]


def made_steps(
    waits: Waits, *, ranks: int = 2, steps: int = 40, seed: int = 0, fault: Fault | None = None, microbatches: int = 1
) -> MadeSteps:
    """Let ranks run through steps: each has a time of its own, and a collective brings all to that of the last."""
    random = np.random.default_rng(seed)
    now, ended = np.zeros(ranks), np.zeros(ranks)
    columns: dict[str, list[NDArray[np.float64]]] = {name: [] for name in (*MEANS_MS, "step", "end")}
    draws = steps * (microbatches * (1 + 2 * LAYERS) + 2)
    noise = np.exp(NOISE * random.standard_normal((draws, ranks)))
    noise *= np.where(random.random((draws, ranks)) < HICCUP, 5.0, 1.0)
    drawn = iter(noise)

    def work(phase: str, layers: int = 1, layer: int | None = None) -> NDArray[np.float64]:
        taken: NDArray[np.float64] = next(drawn) * (
            MEANS_MS[phase] / layers / (1 if phase in ("optimizer", "rest") else microbatches)
        )
        if fault is not None and fault.phase == phase and layer in (None, fault.layer):
            taken[fault.rank] += fault.late_ms
        return taken

    for _ in range(steps):
        times = {name: np.zeros(ranks) for name in MEANS_MS}
        for number in range(microbatches):
            is_late = number == 0  # A fault strikes in the first microbatch.
            before = now
            now = now + work("data")
            times["data"] += now - before
            before = now
            for layer in range(LAYERS):
                now = np.full(ranks, now.max()) if waits == "fsdp" else now
                now = now + work("forward", LAYERS, layer if is_late else -1)
            times["forward"] += now - before
            before = now
            for layer in range(LAYERS):
                now = np.full(ranks, now.max()) if waits == "fsdp" else now
                now = now + work("backward", LAYERS, layer if is_late else -1)
            if waits == "fsdp" or number == microbatches - 1:  # DDP without a sync in all microbatches but the last.
                now = np.full(ranks, now.max())
            times["backward"] += now - before
        before = now
        now = now + work("optimizer")
        times["optimizer"] += now - before
        before = now
        now = now + work("rest")
        times["rest"] += now - before
        for name, taken in times.items():
            columns[name].append(taken)
        columns["step"].append(now - ended)
        columns["end"].append(now)
        ended = now
    arrays = {name: np.array(rows).T for name, rows in columns.items()}
    return MadeSteps(
        phases={name: arrays[name] for name in MEANS_MS if name != "rest"}, step=arrays["step"], end=arrays["end"]
    )


def begin_line(rank: int = 0, world_size: int = 2, **changes: Any) -> dict[str, Any]:
    """Return a begin line as the hook writes it."""
    return {
        "kind": "begin",
        "version": 1,
        "rank": rank,
        "local_rank": rank,
        "world_size": world_size,
        "local_world_size": world_size,
        "host": "node1",
        "pid": 100 + rank,
        "unix_s": 1_795_000_000.0,
        "monotonic_ns": START_NS,
        "torch": "2.13.0",
        "python": "3.11.7",
        "backend": "gloo",
        "device": "cpu",
        "device_name": None,
        "device_uuid": None,
        "groups": [list(range(min(world_size, 64)))],
        "script": "/home/me/train.py",
    } | changes


def steps_line(made: MadeSteps, rank: int, first: int, last: int, **changes: Any) -> dict[str, Any]:
    """Return a batch of steps, from number `first` up to `last`, as the hook writes it."""
    chosen = slice(first, last)

    def ns(values: NDArray[np.float64]) -> list[int]:
        return [round(1e6 * float(value)) for value in values[rank, chosen]]

    step: list[int | None] = list(ns(made.step))
    if first == 0:
        step[0] = None
    return {
        "kind": "steps",
        "rule": "optimizer",
        "first": first,
        "end_ns": [START_NS + end for end in ns(made.end)],
        "step_ns": step,
        "device_ns": None,
        **{f"{name}_ns": ns(values) for name, values in made.phases.items()},
        "backward_calls": [1] * (last - first),
        "tokens": None,
        "own_ns": [20_000] * (last - first),
        "peak_bytes": None,
        "rss_bytes": 300_000_000 + rank,
    } | changes


def write_lines(path: Path, lines: Sequence[object]) -> None:
    """Write lines of JSON."""
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def write_run(
    folder: Path,
    made: MadeSteps,
    *,
    name: str = "llama-sft",
    batch: int = 50,
    start_unix_s: float = 1_795_000_000.0,
    exit_code: int | None = 0,
    steps: dict[str, Any] | None = None,
    begin: dict[str, Any] | None = None,
    watch: dict[str, Any] | None = None,
) -> Path:
    """Write the folder of a watched run with these steps. steps, begin, watch: keys that all such lines have."""
    folder.mkdir(parents=True)
    ranks, number = made.step.shape
    document = {
        "version": 1,
        "name": name,
        "run_id": folder.name,
        "command": ["torchrun", "train.py"],
        "script": "train.py",
        "script_sha256": "ab" * 32,
        "git_commit": None,
        "tags": {},
        "start_unix_s": start_unix_s,
        "end_unix_s": start_unix_s + float(made.end.max()) / 1e3,
        "exit_code": exit_code,
        "signal": None,
    } | (watch or {})
    (folder / "watch.json").write_text(json.dumps(document))
    for rank in range(ranks):
        lines: list[object] = [begin_line(rank, ranks, **(begin or {}))]
        for first in range(0, number, batch):
            last = min(number, first + batch)
            changes = {
                key: value[first:last] if isinstance(value, list) else value for key, value in (steps or {}).items()
            }
            lines.append(steps_line(made, rank, first, last, **changes))
        lines.append({"kind": "end", "unix_s": start_unix_s, "steps": number})
        write_lines(folder / f"watch_rank{rank}.jsonl", lines)
    return folder
