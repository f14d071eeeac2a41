"""What gloo runs beside a device ends a gap by itself: until then the host was late, whatever it did."""

from __future__ import annotations

from collections.abc import Iterable

from collectors.traces.analyzers.idle import idle, idle_causes
from tests.collectors.traces.made.small_traces import BACKWARD, GLOO, MAIN, MICROSECOND_NS, device, launch, span
from tests.support.timelines import Span

LOADS = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
KERNEL = (launch(0, 1), span("compute", "gemm", 10, 110, 7, 1))
MESSAGE = span("communication", "gloo:all_reduce", 200, 250, GLOO)


def _causes(*spans: Span, end_us: int = 250) -> dict[str, list[list[int]]]:
    """The parts of each cause that has some, in microseconds, from 10 to the end."""
    found = idle_causes(device(0, *spans), 10 * MICROSECOND_NS, end_us * MICROSECOND_NS)
    assert found.unknown == 0
    return {cause: _us(parts) for cause, parts in found.by_cause.items() if parts is not None and parts.size}


def _us(parts: Iterable[Iterable[int]]) -> list[list[int]]:
    return [[int(edge_ns) // MICROSECOND_NS for edge_ns in part] for part in parts]


def test_a_gap_before_gloo_is_divided_by_what_the_thread_did_that_launched_last() -> None:
    waits = span("launch", "cudaStreamSynchronize", 105, 120)
    assert _causes(*KERNEL, waits, span("host", LOADS, 120, 190), MESSAGE) == {
        "synchronisation": [[110, 120]],
        "data_loading": [[120, 190]],
        "host_bound": [[190, 200]],
    }


def test_the_thread_is_that_which_had_launched_last_until_the_gap_ended() -> None:
    later = (launch(260, 2, BACKWARD), span("compute", "gemm", 265, 300, 7, 2))
    assert _causes(*KERNEL, span("host", LOADS, 110, 200), MESSAGE, *later)["data_loading"] == [[110, 200]]


def test_a_thread_that_asks_the_driver_and_launches_nothing_is_not_the_one() -> None:
    asks = span("launch", "cudaEventQuery", 150, 151, BACKWARD)
    assert _causes(*KERNEL, asks, span("host", LOADS, 110, 200, MAIN), MESSAGE) == {"data_loading": [[110, 200]]}


def test_where_nothing_was_launched_a_gap_before_gloo_is_the_hosts() -> None:
    one = span("communication", "gloo:all_reduce", 10, 110, GLOO)
    assert _causes(one, MESSAGE) == {"host_bound": [[110, 200]]}


def test_of_gaps_before_gloo_no_launch_is_missed() -> None:
    assert idle([device(0, *KERNEL, MESSAGE)]).notes == ()
