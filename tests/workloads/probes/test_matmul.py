"""The probe `matmul` multiplies what it says, in the precision that it says, and notices a wrong product."""

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
from workloads.probes.cost_model import matmul_flops
from workloads.probes.device import WARM_UP_S, check_product, probe_matmul, warm_up_s
from workloads.probes.spec import MatmulSpec
from workloads.spec import Precision


def _probe(setup: SmallProbe, stopwatch: FakeStopwatch) -> FakeRecord:
    record = FakeRecord()
    probe_matmul(setup, make_mesh(MatmulSpec().mesh(setup), "cpu"), record, stopwatch)
    return record


def _probed(setup: SmallProbe) -> tuple[FakeRecord, list[tuple[int, int]]]:
    stopwatch = FakeStopwatch()
    return _probe(setup, stopwatch), stopwatch.asked


def test_every_rank_records_the_median_of_each_size(on_ranks: OnRanks) -> None:
    setup = small_probe(MatmulSpec(), {"min_size": 32, "max_size": 128}, ranks=2)
    for record, asked in on_ranks(2, _probed, setup):
        assert [labels for _, labels in record.taken] == [{"m": s, "n": s, "k": s} for s in ("32", "64", "128")]
        assert [figures for figures, _ in record.taken] == [{"matmul_s": 2.0}] * MatmulSpec().measurements(setup)
        assert asked == [(setup.warm_up, setup.steps)] * MatmulSpec().measurements(setup)


def test_large_products_are_warmed_by_time_on_a_gpu_and_on_a_cpu_none_is() -> None:
    assert [warm_up_s("cuda", size) for size in (256, 2048, 4096, 16384)] == [0.0, 0.0, WARM_UP_S, WARM_UP_S]
    assert WARM_UP_S >= 1
    assert warm_up_s("cpu", 16384) == 0


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_products_of_every_precision_are_right(on_ranks: OnRanks, precision: Precision) -> None:
    on_ranks(1, _probed, small_probe(MatmulSpec(), {"min_size": 200, "max_size": 200}, precision=precision))


def _matrices() -> dict[int, Tensor]:
    found = (thing for thing in gc.get_objects() if type(thing) is Tensor)
    return {tensor.data_ptr(): tensor for tensor in found if tensor.ndim == 2 and tensor.dtype is torch.bfloat16}


def _most_bytes_held(setup: SmallProbe) -> int:
    held = [0]
    _probe(setup, FakeStopwatch(during=lambda: held.append(sum(x.nbytes for x in _matrices().values()))))
    return max(held)


def test_a_rank_holds_what_the_card_says(on_ranks: OnRanks) -> None:
    setup = small_probe(MatmulSpec(), {"min_size": 32, "max_size": 64}, precision="bf16")
    assert on_ranks(1, _most_bytes_held, setup) == [MatmulSpec().working_bytes(setup, 0)]


def _elements_seen(setup: SmallProbe) -> list[tuple[float, float]]:
    """Mean and standard deviation of each matrix, during each call."""
    seen: list[tuple[float, float]] = []

    def look() -> None:
        seen.extend((float(x.float().mean()), float(x.float().std())) for x in _matrices().values())

    _probe(setup, FakeStopwatch(during=look))
    return seen


def test_factors_are_random_since_regular_values_would_draw_less_power(on_ranks: OnRanks) -> None:
    setup = small_probe(MatmulSpec(), {"min_size": 256, "max_size": 256}, precision="bf16")
    (seen,) = on_ranks(1, _elements_seen, setup)
    standard_normal = [pair for pair in seen if abs(pair[0]) < 0.05 and abs(pair[1] - 1) < 0.05]
    assert len(standard_normal) == 2 * (setup.warm_up + setup.steps)


def _factors(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    a_mk, b_kn = (torch.randn(96, 96, generator=generator, dtype=dtype) for _ in range(2))
    return a_mk, b_kn


def _as_tf32(x: Tensor) -> Tensor:
    """Its mantissa cut to the ten bits that TF32 keeps."""
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def test_a_product_of_whole_rectangles_is_right() -> None:
    a_mk, b_kn = _factors()
    check_product(a_mk[:5], b_kn[:, :70], a_mk[:5] @ b_kn[:, :70])


def test_tf32_is_not_fp32() -> None:
    a_mk, b_kn = _factors()
    with pytest.raises(RuntimeError, match=r"96 x 96 and 96 x 96 in torch.float32 is wrong by .* switch TF32 off"):
        check_product(a_mk, b_kn, _as_tf32(a_mk) @ _as_tf32(b_kn))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_wrong_row_is_noticed(dtype: torch.dtype) -> None:
    a_mk, b_kn = _factors(dtype)
    product_mn = a_mk @ b_kn
    check_product(a_mk, b_kn, product_mn)
    product_mn[-1] = 0
    with pytest.raises(RuntimeError, match="wrong"):
        check_product(a_mk, b_kn, product_mn)


def _probed_idly(setup: SmallProbe) -> None:
    _probe(setup, IdleStopwatch())


def test_a_product_that_was_never_computed_is_noticed(on_ranks: OnRanks) -> None:
    with pytest.raises(RuntimeError, match=r"32 x 32 in torch.float32 is wrong by nan"):
        on_ranks(1, _probed_idly, small_probe(MatmulSpec(), {"min_size": 32, "max_size": 32}))


def _fastest_on_gpu(setup: SmallProbe) -> float:
    record = FakeRecord()
    stopwatch = CudaStopwatch(lambda: None, torch.device("cuda", 0))
    probe_matmul(setup, make_mesh({"data": 1}, "cpu"), record, stopwatch)
    return max(
        matmul_flops(int(labels["m"]), int(labels["n"]), int(labels["k"])) / figures["matmul_s"]
        for figures, labels in record.taken
    )


@pytest.mark.gpu
def test_bf16_on_a_gpu_reaches_a_third_of_its_sheet_and_never_exceeds_it(on_ranks: OnRanks) -> None:
    peak = peak_of(torch.cuda.get_device_name(0), "bf16")
    if not isinstance(peak, Peak):
        pytest.skip(peak.reason)
    (fastest,) = on_ranks(1, _fastest_on_gpu, small_probe(MatmulSpec(), device="cuda", precision="bf16"))
    assert 0.3 <= fastest / peak.flops_per_second <= 1


@pytest.mark.gpu
def test_fp32_on_a_gpu_is_computed_without_tf32(on_ranks: OnRanks) -> None:
    on_ranks(1, _fastest_on_gpu, small_probe(MatmulSpec(), {"min_size": 1024, "max_size": 4096}, device="cuda"))
