"""Checks of memory: snapshots by category beside the allocator's account, the history's file, and fp16 training."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator

from collectors.metrics import results
from collectors.metrics.rank import TIMELINE_PEAK_BYTES
from tests.gpu.check import Finding, figure, holds, within
from tests.gpu.readings import Ran, Unreadable, ran
from tests.gpu.session import Session

TOTAL = "total"
"""The category that is the sum of the others."""


def snapshot(session: Session) -> Iterator[Finding]:
    """A step's memory by category, and the allocator's own history of it."""
    words = ("--precision", session.half, "--steps", "5", "--trace-steps", "0", "--memory-snapshot")
    (done,) = session.commands.run(session.observed("single", *session.shape("125m", 8), *words))
    run = ran(done)
    categories = _categories(run)
    parts = sum(value for name, value in categories.items() if name != TOTAL)
    yield figure("categories", ", ".join(f"{name} {value / 2**20:.4g} MiB" for name, value in categories.items()))
    yield within(
        "sum of categories / total",
        parts / categories[TOTAL],
        low=0.999,
        high=1.001,
        source="each block is of one category",
    )
    if session.is_rehearsal:
        return
    peak_bytes = run.value(results.RUN_PEAK_MEMORY_BYTES, account="allocator")
    yield within(
        "total / allocator's peak",
        categories[TOTAL] / peak_bytes,
        low=0.9,
        high=1.1,
        source="the same step, unmeasured",
    )
    history = run.folder / "rank0.memory.pickle"
    with history.open("rb") as file:
        held = pickle.load(file)
    yield holds(
        "history",
        isinstance(held, dict) and "segments" in held,
        seen=f"{history.stat().st_size / 2**20:.3g} MiB, {', '.join(held) if isinstance(held, dict) else type(held)}",
        expected="segments",
        source="torch.cuda.memory._snapshot",
    )


def _categories(run: Ran) -> dict[str, float]:
    found = {
        sample.labels["category"]: sample.value
        for samples in run.readings("memory")
        for sample in samples
        if sample.metric == TIMELINE_PEAK_BYTES.name
    }
    if TOTAL not in found:
        raise Unreadable(f"the log of rank 0 has no {TIMELINE_PEAK_BYTES.name} in total; it has {sorted(found)}")
    return found


def fp16(session: Session) -> Iterator[Finding]:
    """Training in fp16, whose gradients are scaled."""
    words = ("--precision", "fp16", "--steps", session.count(20), "--trace-steps", "0")
    (done,) = session.commands.run(session.observed("single", *words))
    loss = ran(done).value(results.RUN_LOSS)
    yield holds(
        "loss", math.isfinite(loss), seen=f"{loss:.4g}", expected="finite", source="a scaler skips what overflows"
    )
