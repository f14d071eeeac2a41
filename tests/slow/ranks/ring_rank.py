"""One rank of a network in a box that attends on a ring, its attention replaced by sleeping.

A sleeping rank leaves its core to others, so that slow links, and nothing else, are what a hop waits for.
Started as `python -m tests.slow.ranks.ring_rank ORDER`, a `RingOrder` as JSON.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from collectors.rank.profiler import ProfiledSteps, warm
from collectors.traces.breakdown import breakdowns
from tests.slow.ranks.boxed_ranks import Order, serve_rank
from tests.slow.ranks.priority import go_first
from workloads.context_parallel.ring_attention import Ring, RingAttention

REPEATS = 5

# One head of one sequence: keys and values of a rank are 4 MiB together, and so are their gradients.
POSITIONS, ELEMENTS = 8192, 64
BLOCK_BYTES = 2 * 4 * POSITIONS * ELEMENTS


class RingOrder(Order, frozen=True, kw_only=True):
    """What a rank shall do. attention_s: how long it attends to each block."""

    attention_s: float


class Passes(msgspec.Struct, frozen=True, kw_only=True):
    """The shortest of all repeats: what else runs only adds time.

    traced_overlap_ratio: median of the forward passes, as the product computes it.
    """

    forward_s: float
    backward_s: float
    traced_overlap_ratio: float


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's answer. block_s: all ranks pass on a block, and do nothing else."""

    block_s: float
    overlapped: Passes
    waiting: Passes


class FakeKernel:
    """Attention that lasts, and gives nothing. In a trace it looks like an operator."""

    def __init__(self, attention_s: float) -> None:
        self._attention_s = attention_s

    def forward(self, q_bhqe: Tensor, k_bkte: Tensor, v_bkte: Tensor, *, is_causal: bool) -> tuple[Tensor, Tensor]:
        """See `Kernel.forward`."""
        self._sleep()
        return torch.zeros_like(q_bhqe), torch.zeros(q_bhqe.shape[:3])

    def backward(
        self,
        out_gradient_bhqe: Tensor,
        q_bhqe: Tensor,
        k_bkte: Tensor,
        v_bkte: Tensor,
        out_bhqe: Tensor,
        lse_bhq: Tensor,
        *,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Kernel.backward`."""
        self._sleep()
        return torch.zeros_like(q_bhqe), torch.zeros_like(k_bkte), torch.zeros_like(v_bkte)

    def _sleep(self) -> None:
        with record_function("aten::sleep"):
            time.sleep(self._attention_s)


def elapsed_s(work: Callable[[], object]) -> float:
    """How long the work takes when all ranks begin at once."""
    dist.barrier()
    begun_s = time.perf_counter()
    work()
    return time.perf_counter() - begun_s


def measure_block(ring: Ring) -> float:
    """The least time in which a block goes to the next rank, while another comes."""
    block = torch.zeros(BLOCK_BYTES // 4)

    def pass_on(times: int) -> None:
        for _ in range(times):
            ring.pass_on(block).wait()

    # After a pause a link of the box is faster at first: blocks behind another are like those of a ring.
    three_s = min(elapsed_s(lambda: pass_on(3)) for _ in range(REPEATS))
    one_s = min(elapsed_s(lambda: pass_on(1)) for _ in range(REPEATS))
    return (three_s - one_s) / 2


def measure_passes(ring: Ring, attention_s: float) -> Passes:
    """The product's attention, asleep."""
    attention = RingAttention(ring=ring, layout="zigzag", is_causal=True, kernel=FakeKernel(attention_s))
    q, k, v = (torch.zeros(1, 1, POSITIONS, ELEMENTS, requires_grad=True) for _ in range(3))
    forward_s, backward_s = [], []
    for _ in range(REPEATS):
        outs: list[Tensor] = []
        forward_s.append(elapsed_s(lambda outs=outs: outs.append(attention(q, k, v))))  # type: ignore[misc]
        gradient = torch.zeros_like(outs[0])
        backward_s.append(elapsed_s(lambda outs=outs, gradient=gradient: outs[0].backward(gradient)))  # type: ignore[misc]
    with ProfiledSteps(torch.device("cpu")) as window:
        for _ in range(3):
            dist.barrier()
            with window.step():
                attention(q, k, v)
    return Passes(
        forward_s=min(forward_s),
        backward_s=min(backward_s),
        traced_overlap_ratio=statistics.median(
            step.overlap_ns / step.communication_ns
            for step in breakdowns(window.timeline(dist.get_rank()))
            if step.communication_ns and step.overlap_ns is not None
        ),
    )


def measure(order: RingOrder) -> Measured:
    """All that the order asks for; the process group exists."""
    group = dist.group.WORLD
    assert group is not None
    overlapped, waiting = (Ring(group, is_overlapped=is_overlapped) for is_overlapped in (True, False))
    return Measured(
        block_s=measure_block(overlapped),
        overlapped=measure_passes(overlapped, order.attention_s),
        waiting=measure_passes(waiting, order.attention_s),
    )


def main() -> None:
    """Measure for the order on the command line."""
    order = msgspec.json.decode(sys.argv[1], type=RingOrder)
    warm(torch.device("cpu"))
    go_first()
    serve_rank(order, lambda: measure(order))


if __name__ == "__main__":
    main()
