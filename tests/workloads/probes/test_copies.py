"""The probe `copies` copies what it says, and notices a copy that is none."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from bench.results.mfu import Peak, peak_of
from collectors.rank.stopwatch import CudaStopwatch
from tests.support.ranks import OnRanks
from tests.workloads.probes.small_probes import FakeRecord, FakeStopwatch, IdleStopwatch, SmallProbe, small_probe
from workloads.core.mesh import make_mesh
from workloads.probes.cost_model import moved_bytes
from workloads.probes.device import is_copied, is_triad, probe_copies
from workloads.probes.spec import KINDS, CopiesSpec
from workloads.spec import Precision

SIZE_BYTES = 40_000


def _probe(setup: SmallProbe, stopwatch: FakeStopwatch) -> FakeRecord:
    record = FakeRecord()
    probe_copies(setup, make_mesh(CopiesSpec().mesh(setup), "cpu"), record, stopwatch)
    return record


def _probed(setup: SmallProbe) -> tuple[FakeRecord, list[tuple[int, int]]]:
    stopwatch = FakeStopwatch()
    return _probe(setup, stopwatch), stopwatch.asked


def test_every_rank_records_the_median_of_each_kind(on_ranks: OnRanks) -> None:
    setup = small_probe(CopiesSpec(), {"size_bytes": SIZE_BYTES}, ranks=2)
    for record, asked in on_ranks(2, _probed, setup):
        assert record.taken == [
            ({"copy_s": 2.0}, {"kind": "memory_copy", "size": "40000"}),
            ({"copy_s": 2.0}, {"kind": "memory_triad", "size": "40000"}),
        ]
        assert asked == [(setup.warm_up, setup.steps)] * CopiesSpec().measurements(setup)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_copies_of_every_precision_are_right(on_ranks: OnRanks, precision: Precision) -> None:
    on_ranks(1, _probed, small_probe(CopiesSpec(), {"size_bytes": SIZE_BYTES}, precision=precision))


def _bytes_held(setup: SmallProbe) -> list[int]:
    held: list[int] = []

    def look() -> None:
        buffers = (thing for thing in gc.get_objects() if type(thing) is Tensor and thing.nbytes == SIZE_BYTES)
        held.append(len({buffer.data_ptr() for buffer in buffers}) * SIZE_BYTES)

    _probe(setup, FakeStopwatch(during=look))
    return held


def test_a_rank_holds_what_the_card_says_and_what_a_kind_touches(on_ranks: OnRanks) -> None:
    setup = small_probe(CopiesSpec(), {"size_bytes": SIZE_BYTES})
    (held,) = on_ranks(1, _bytes_held, setup)
    calls = setup.warm_up + setup.steps
    assert held == [moved_bytes("memory_copy", SIZE_BYTES)] * calls + [moved_bytes("memory_triad", SIZE_BYTES)] * calls
    assert max(held) == CopiesSpec().working_bytes(setup, 0)


def _probed_idly(setup: SmallProbe) -> None:
    _probe(setup, IdleStopwatch())


def test_a_copy_that_was_never_made_is_noticed(on_ranks: OnRanks) -> None:
    with pytest.raises(RuntimeError, match=r"^memory_copy of 40000 bytes is wrong"):
        on_ranks(1, _probed_idly, small_probe(CopiesSpec(), {"size_bytes": SIZE_BYTES}))


def test_a_copy_is_looked_at_from_its_first_to_its_last_element() -> None:
    source = torch.rand(100_000)
    assert is_copied(source, source.clone())
    for index in (0, -1):
        target = source.clone()
        target[index] += 1
        assert not is_copied(source, target)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_triad_is_b_and_three_times_c(dtype: torch.dtype) -> None:
    b, c = torch.rand(100_000, dtype=dtype), torch.rand(100_000, dtype=dtype)
    assert is_triad(b + 3 * c, b, c)
    assert not is_triad(b + 2 * c, b, c)
    assert not is_triad(torch.full_like(b, torch.nan), b, c)


def _rates_on_gpu(setup: SmallProbe) -> dict[str, float]:
    record = FakeRecord()
    stopwatch = CudaStopwatch(lambda: None, torch.device("cuda", 0))
    probe_copies(setup, make_mesh({"data": 1}, "cpu"), record, stopwatch)
    return {
        labels["kind"]: moved_bytes(labels["kind"], int(labels["size"])) / figures["copy_s"]
        for figures, labels in record.taken
    }


@pytest.mark.gpu
def test_a_copy_on_a_gpu_reaches_half_of_its_sheet_and_never_exceeds_it(on_ranks: OnRanks) -> None:
    peak = peak_of(torch.cuda.get_device_name(0), "fp32")
    if not isinstance(peak, Peak):
        pytest.skip(peak.reason)
    (rates,) = on_ranks(1, _rates_on_gpu, small_probe(CopiesSpec(), device="cuda"))
    assert tuple(rates) == KINDS["cuda"]
    assert 0.5 <= rates["device_copy"] / peak.bandwidth_bytes_per_second <= 1


@pytest.mark.gpu
def test_the_bus_is_slower_than_the_gpus_memory(on_ranks: OnRanks) -> None:
    (rates,) = on_ranks(1, _rates_on_gpu, small_probe(CopiesSpec(), {"size_bytes": 1 << 28}, device="cuda"))
    assert max(rates, key=lambda kind: rates[kind]) == "device_copy"
