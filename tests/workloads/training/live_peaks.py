"""The live tensors that a strategy needs at the peak of its step, whenever gloo's threads get their turn."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch.distributed as dist

from collectors.rank.memory import live_tensor_bytes
from tests.workloads.training.setups import SmallSetup
from tests.workloads.training.training_runs import Ready, make_ready
from workloads.protocols import ReceivesMessages

WARM_UP = 2
MOST_TRACKED = 5

Live = dict[str, int]
"""Bytes by category."""


def peak_by_category(setup: SmallSetup) -> Live:
    """Live bytes at the peak of a step, by category: those of the least of several steps.

    A thread of gloo may keep a collective's tensors a little longer than the rank waits for it: on a busy machine some
    steps hold more than they need. So a step that holds as little as another is believed; one rank alone has no such
    threads, and each of its steps is.
    """
    gc.freeze()  # What is there already, such as setups that the rank has tracked before, is looked at no more.
    ready = make_ready(setup)
    for _ in range(WARM_UP):
        ready.step()
    tracked = [_tracked_step(ready)]
    while setup.ranks > 1 and len(tracked) < MOST_TRACKED and not _is_so_on_all_ranks(_is_least_seen_twice(tracked)):
        tracked.append(_tracked_step(ready))
    return min(tracked, key=_total_of)


def _total_of(live: Live) -> int:
    return live["total"]


def _is_least_seen_twice(tracked: Sequence[Live]) -> bool:
    totals = [_total_of(live) for live in tracked]
    return totals.count(min(totals)) >= 2


def _is_so_on_all_ranks(is_so: bool) -> bool:
    """Whether all ranks say so: they take their steps together."""
    said = [False] * dist.get_world_size()
    dist.all_gather_object(said, is_so)
    return all(said)


def _tracked_step(ready: Ready) -> Live:
    workload = ready.workload
    buffers = workload.receive_buffers() if isinstance(workload, ReceivesMessages) else ()
    samples = live_tensor_bytes(ready.step, workload.model, workload.optimizer, buffers=buffers)
    return {sample.labels["category"]: int(sample.value) for sample in samples}
