"""What a traced window tells where the profiler saw too little, by Timelines made by hand."""

from __future__ import annotations

import torch

from bench.traced_window import partial_steps, tells_of
from collectors.traces.names import STEP
from collectors.traces.spans import Span, Timeline, timeline_of

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


def _timeline(*, kernels: tuple[int, ...], launches: tuple[int, ...] = (0, 1)) -> Timeline:
    """Two steps of 100 ns, each of which launches one kernel. kernels: of which launches the trace has the work."""
    spans = [Span(name=STEP, kind="step", start_ns=100 * step, end_ns=100 * step + 99, stream=1) for step in (0, 1)]
    spans += [
        Span(
            name="cudaLaunchKernel", kind="launch", start_ns=100 * at + 5, end_ns=100 * at + 8, stream=1, correlation=at
        )
        for at in launches
    ]
    spans += [
        Span(name="gemm", kind="compute", start_ns=100 * at + 20, end_ns=100 * at + 60, stream=7, correlation=at)
        for at in kernels
    ]
    return timeline_of(spans, rank=0, is_device=bool(kernels))


def test_a_window_on_a_gpu_without_a_kernel_tells_nothing_of_it() -> None:
    assert not tells_of(CUDA, _timeline(kernels=()))
    assert tells_of(CUDA, _timeline(kernels=(0,)))
    assert tells_of(CPU, _timeline(kernels=(), launches=()))


def test_a_step_whose_kernels_were_lost_is_named() -> None:
    assert list(partial_steps(_timeline(kernels=(0, 1)))) == []
    assert list(partial_steps(_timeline(kernels=(0,)))) == [
        "traced step 1 is left out: the trace lacks the work of 1 of 1 launches"
    ]
