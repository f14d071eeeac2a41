"""Cost model of a step's time: computation, and communication that is hidden behind it or exposed.

With `hiding` = 1 communication takes nothing from computation: no core, no memory bandwidth, no multiprocessor. A step
that is slower than predicted pays for one of them, or for a collective that waits needlessly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workloads.cost_models.communication import CommunicationBackend
from workloads.cost_models.interconnect import Interconnect, transfer_time_s
from workloads.cost_models.terms import Transfer

# Compute time, which `workloads.cost_models.roofline` predicts.

FORWARD_SHARE = 1 / 3
"""Backward has twice the FLOPs of forward: it multiplies by the weights, and by the activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeTime:
    """Compute time of a rank in one step, by phase.

    recomputed_s: part of backward that repeats forward; 0 where it is not known apart.
    host_s: part of both in which the host prepares calls, equal for all blocks; 0 where it is not known apart.
    """

    forward_s: float
    backward_s: float
    optimizer_s: float = 0.0
    recomputed_s: float = 0.0
    host_s: float = 0.0

    @property
    def step_s(self) -> float:
        """Time of the step if communication took none."""
        return self.forward_s + self.backward_s + self.optimizer_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Predicted time of one step.

    communication_s: time in which collectives run, hidden or not.
    exposed_s: what it adds to the step, because the rank computes nothing meanwhile, or waits for one that computes
    nothing.
    bubble_s: what a pipeline's schedule and its unequal stages would add if communication took no time.
    """

    compute: ComputeTime
    communication_s: float
    exposed_s: float
    bubble_s: float = 0.0

    @property
    def step_s(self) -> float:
        return self.compute.step_s + self.bubble_s + self.exposed_s

    @property
    def hidden_ratio(self) -> float | None:
        """Communication that runs while the rank computes, divided by all communication; None where there is none.

        0 where ranks of a pipeline wait longer for others' messages than their own take.
        """
        if self.communication_s == 0:
            return None
        return max(0.0, 1 - self.exposed_s / self.communication_s)


def step_time(
    compute: ComputeTime,
    transfers: Sequence[Transfer],
    *,
    axes: Mapping[str, int],
    interconnect: Interconnect,
    backend: CommunicationBackend,
    hiding: float = 1.0,
) -> StepTime:
    """Predict one step: each transfer overlaps the phase that its `behind` names, or is exposed where that is None.

    axes: name and size of each mesh axis, outermost first. hiding: see `queue_exposed_s`.

    Raises:
        ValueError: as `interconnect.transfer_time_s`.
    """
    timed = [(transfer, transfer_time_s(transfer, axes, interconnect, backend)) for transfer in transfers]
    return step_of_times(compute, timed, hiding=hiding)


def step_of_times(
    compute: ComputeTime, transfers: Sequence[tuple[Transfer, float]], *, hiding: float = 1.0
) -> StepTime:
    """Predict one step from transfers whose times are known, in seconds; see `step_time`."""
    communication_s = exposed_s = 0.0
    # The transfers of one phase share the link, so they form one queue, in the order in which they are listed.
    queues: dict[str, list[tuple[float, int]]] = {"forward": [], "backward": []}
    for transfer, transfer_s in transfers:
        communication_s += transfer_s
        if transfer.behind is None:
            exposed_s += transfer_s
        else:
            queues[transfer.behind].append((transfer_s / transfer.calls, transfer.calls))
    for phase_s, queue_s in ((compute.forward_s, queues["forward"]), (compute.backward_s, queues["backward"])):
        exposed_s += queue_exposed_s(phase_s, queue_s, hiding)
    return StepTime(compute=compute, communication_s=communication_s, exposed_s=exposed_s)


def queue_exposed_s(phase_s: float, runs: Sequence[tuple[float, int]], hiding: float = 1.0) -> float:
    """Return what the transfers behind one phase add to it.

    runs: the queue, as runs of equal calls: the time of one call, and their number.
    hiding: share of what `overlapped_s` hides that is really hidden. The rest adds to the step: a collective takes
    memory bandwidth and multiprocessors from the kernels that it hides behind.
    """
    added_s = _overlapped_runs_s(phase_s, runs) - phase_s
    sent_s = sum(call_s * calls for call_s, calls in runs)
    return added_s + (1 - hiding) * max(0.0, sent_s - added_s)


def overlapped_s(compute_s: float, buckets_s: Sequence[float]) -> float:
    """Return the time from the start of the phase until computation and all buckets are done.

    A bucket is ready when its share of the phase, equal to its share of all bytes, has been computed; buckets are sent
    in this order, one at a time. Each bucket is therefore a lower bound: the computation until it is ready, plus its
    transfer and all that follow. With k equal buckets and C seconds of communication the time is max(compute + C / k,
    compute / k + C): the last bucket cannot be hidden, and nothing can be sent before the first is ready. One bucket
    hides nothing.
    Buckets that must arrive before their share is computed, as FSDP gathers weights in forward, give the same time: it
    is the same schedule backwards.
    Source: Li et al. 2020, PyTorch Distributed, section 3.2.3 (buckets overlap backward).
    """
    return _overlapped_runs_s(compute_s, [(bucket_s, 1) for bucket_s in buckets_s])


def _overlapped_runs_s(compute_s: float, runs: Sequence[tuple[float, int]]) -> float:
    """Return `overlapped_s` of runs of equal buckets, each given as one bucket's time and their number."""
    whole_s = sum(count * bucket_s for bucket_s, count in runs)
    if whole_s == 0:
        return compute_s
    # Bucket i: computed up to its end (sent_s / whole_s of the phase), then transfers of itself and all later buckets.
    # Within a run this changes by the same amount from bucket to bucket, so that the first or the last is the longest.
    ends_s, before_s = [], 0.0
    for bucket_s, count in runs:
        for sent_s in (before_s + bucket_s, before_s + count * bucket_s):
            ends_s.append(compute_s * sent_s / whole_s + (whole_s - sent_s + bucket_s))
        before_s += count * bucket_s
    return max(ends_s)
