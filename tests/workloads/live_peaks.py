"""The live tensors that a strategy needs at the peak of its step, whenever gloo's threads get their turn."""

from __future__ import annotations

from collectors.live_tensors import live_tensor_bytes
from tests.workloads.setups import SmallSetup
from tests.workloads.training_runs import Ready, make_ready

WARM_UP = 2
TRACKED = 3


def peak_by_category(setup: SmallSetup) -> dict[str, int]:
    """Live bytes at the peak of a step, by category: those of the least of several steps.

    A thread of gloo may keep a collective's tensors a little longer than the rank waits for it: on a busy machine some
    steps hold more than they need.
    """
    ready = make_ready(setup)
    for _ in range(WARM_UP):
        ready.step()
    return min((_tracked_step(ready) for _ in range(TRACKED)), key=lambda live: live["total"])


def _tracked_step(ready: Ready) -> dict[str, int]:
    samples = live_tensor_bytes(ready.step, ready.workload.model, ready.workload.optimizer)
    return {sample.labels["category"]: int(sample.value) for sample in samples}
