"""The live tensors that a strategy needs at the peak of its step, whenever gloo's threads get their turn."""

from __future__ import annotations

import gc

from collectors.rank.memory import live_tensor_bytes
from tests.workloads.training.setups import SmallSetup
from tests.workloads.training.training_runs import Ready, make_ready
from workloads.protocols import ReceivesMessages

WARM_UP = 2
TRACKED = 3


def peak_by_category(setup: SmallSetup) -> dict[str, int]:
    """Live bytes at the peak of a step, by category: those of the least of several steps.

    A thread of gloo may keep a collective's tensors a little longer than the rank waits for it: on a busy machine some
    steps hold more than they need.
    """
    gc.freeze()  # What is there already, such as setups that the rank has tracked before, is looked at no more.
    ready = make_ready(setup)
    for _ in range(WARM_UP):
        ready.step()
    return min((_tracked_step(ready) for _ in range(TRACKED)), key=lambda live: live["total"])


def _tracked_step(ready: Ready) -> dict[str, int]:
    workload = ready.workload
    buffers = workload.receive_buffers() if isinstance(workload, ReceivesMessages) else ()
    samples = live_tensor_bytes(ready.step, workload.model, workload.optimizer, buffers=buffers)
    return {sample.labels["category"]: int(sample.value) for sample in samples}
