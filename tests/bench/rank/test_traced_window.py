"""What a window of a rank on a GPU tells: what it counts, what it lacks, and when it tells nothing."""

from __future__ import annotations

import pytest
import torch

from bench.case import Case
from bench.rank.instrumentation import TracedWindow, entered_in, partial_steps, shows_device
from collectors.rank.flight_recorder import Forgotten
from collectors.rank.profiler import ProfiledSteps
from collectors.traces.event_names import STEP
from collectors.traces.timeline import Timeline
from tests.bench.made.examples import make_case
from tests.collectors.made_nccl_record import CREATED_NS, EMPTY, MadeRecord
from tests.support.timelines import Span, timeline_of


def _case(compile_mode: str = "none") -> Case:
    case = make_case("ddp", device="cuda", backend="nccl")
    return make_case("ddp", device="cuda", backend="nccl", options={**case.options, "compile": compile_mode})


def _traced(*, launch: str | None, record: bytes) -> TracedWindow:
    """A window with one kernel of NCCL. launch: the call that launched it; None: no event of the device was seen."""
    spans = (
        [
            Span(name=launch, kind="launch", start_ns=CREATED_NS, end_ns=CREATED_NS + 1, stream=1, correlation=1),
            Span(
                name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                kind="communication",
                start_ns=CREATED_NS + 5,
                end_ns=CREATED_NS + 9,
                stream=20,
                correlation=1,
            ),
        ]
        if launch is not None
        else []
    )
    timeline = timeline_of(spans, rank=0, is_device=launch is not None)
    window = ProfiledSteps(torch.device("cpu"))
    return TracedWindow(
        window=window, timeline=timeline, before=EMPTY, after=record, has_figures=launch is not None, notes=()
    )


REDUCED = MadeRecord().collective("nccl:all_reduce").json()


@pytest.mark.parametrize("compile_mode", ["none", "default", "reduce-overhead", "max-autotune"])
def test_collectives_that_torch_issued_are_counted_in_every_mode(compile_mode: str) -> None:
    (one,) = entered_in(_traced(launch="cudaLaunchKernelExC", record=REDUCED), _case(compile_mode))
    assert (one.name, one.payload_bytes) == ("all_reduce", 16)


@pytest.mark.parametrize("compile_mode", ["none", "reduce-overhead"])
def test_replayed_collectives_are_absent_and_not_none(compile_mode: str) -> None:
    with pytest.raises(Forgotten, match="1 collectives were replayed from CUDA graphs"):
        entered_in(_traced(launch="cudaGraphLaunch", record=EMPTY), _case(compile_mode))


def test_a_window_without_kernels_counts_nothing_where_graphs_may_have_replayed_some() -> None:
    traced = _traced(launch=None, record=EMPTY)
    assert entered_in(traced, _case()) == []
    with pytest.raises(Forgotten, match="no events of the device"):
        entered_in(traced, _case("max-autotune"))


def test_gloo_is_counted_in_every_mode_since_no_graph_holds_its_collectives() -> None:
    traced = _traced(launch=None, record=REDUCED)
    case = make_case("ddp", options={**make_case("ddp").options, "compile": "reduce-overhead"})
    assert len(entered_in(traced, case)) == 1


FUNCTIONAL = {
    "all_gather": "nccl:all_gather_into_tensor_coalesced",
    "reduce_scatter": "nccl:reduce_scatter_tensor_coalesced",
    "all_reduce": "nccl:all_reduce",
    "all_to_all": "nccl:all_to_all",
}
"""What NCCL's record calls the functional collectives of DTensor. Source: Functional.cpp, all_gather_into_tensor and
reduce_scatter_tensor, which call the coalesced forms."""


@pytest.mark.parametrize("strategy", ["tensor_parallel", "three_d"])
def test_dtensors_collectives_on_nccl_are_counted_by_the_names_of_their_laws(strategy: str) -> None:
    options = {**make_case(strategy, ranks=4).options, "sequence_parallel": True}
    case = make_case(strategy, ranks=4, device="cuda", backend="nccl", options=options)
    transfers = [transfer for transfer in case.spec().transfers(case) if transfer.collective != "send"]
    record = MadeRecord()
    for transfer in transfers:
        sizes = ((int(transfer.payload_bytes) // 4,),)
        record.collective(FUNCTIONAL[transfer.collective], sizes)
    counted = entered_in(_traced(launch=None, record=record.json()), case)
    assert {one.name for one in counted} >= {"all_gather", "reduce_scatter"}
    assert [(one.name, one.payload_bytes) for one in counted] == [
        (transfer.collective, transfer.payload_bytes) for transfer in transfers
    ]


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
    assert not shows_device(CUDA, _timeline(kernels=()))
    assert shows_device(CUDA, _timeline(kernels=(0,)))
    assert shows_device(CPU, _timeline(kernels=(), launches=()))


def test_a_step_whose_kernels_were_lost_is_named() -> None:
    assert list(partial_steps(_timeline(kernels=(0, 1)))) == []
    assert list(partial_steps(_timeline(kernels=(0,)))) == [
        "traced step 1 is left out: the trace lacks the work of 1 of 1 launches"
    ]
