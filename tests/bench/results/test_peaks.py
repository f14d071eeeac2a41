"""Peaks of devices whose names resemble each other, against their data sheets."""

from __future__ import annotations

from typing import cast

import pytest

from bench.results.mfu import Peak, PeakPrecision, peak_of
from workloads.cost_models.absent import Absent
from workloads.spec import Precision


@pytest.mark.parametrize(
    ("name", "half_tflops", "bandwidth_gb"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4, 3350),
        ("NVIDIA H100 PCIe", 756, 2039),
        ("NVIDIA H100 NVL", 835.5, 3938),
        ("NVIDIA H200", 989.4, 4800),
        ("NVIDIA H200 NVL", 835.5, 4800),
        ("NVIDIA A10", 125, 600),
        ("NVIDIA A10G", 70, 600),
        ("NVIDIA A100-SXM4-40GB", 312, 1555),
        ("NVIDIA A100-SXM4-80GB", 312, 2039),
        ("NVIDIA A100 80GB PCIe", 312, 1935),
        ("NVIDIA L4", 121, 300),
        ("NVIDIA L40S", 362.05, 864),
        ("NVIDIA B200", 2250, 7700),
        ("AMD Instinct MI300X", 1307.4, 5300),
        ("AMD Instinct MI325X", 1307.4, 6000),
    ],
)
def test_devices_of_similar_names_have_their_own_peaks(name: str, half_tflops: float, bandwidth_gb: float) -> None:
    peak = peak_of(name, "bf16")
    assert isinstance(peak, Peak)
    assert peak.flops_per_second == pytest.approx(half_tflops * 1e12)
    assert peak.bandwidth_bytes_per_second == pytest.approx(bandwidth_gb * 1e9)
    assert peak.source


@pytest.mark.parametrize(
    ("name", "fp32_tflops", "dense_tflops", "bandwidth_tb"),
    [
        ("NVIDIA GB200", 5760 / 72, 360_000 / 72 / 2, 576 / 72),  # Of the rack's 72 GPUs; with sparsity.
        ("NVIDIA B100", 60, 3500 / 2, 8),
        ("NVIDIA H20", 44, 148, 4),
        ("NVIDIA H800", 67, 1979 / 2, 3.35),
        ("NVIDIA H800 PCIe", 51, 1513 / 2, 2),
        ("NVIDIA A800-SXM4-80GB", 19.5, 624 / 2, 2.039),
        ("NVIDIA A800 80GB PCIe", 19.5, 624 / 2, 1.935),
        ("NVIDIA A40", 37.4, 299.4 / 2, 0.696),
        ("NVIDIA L40", 90.5, 362.1 / 2, 0.864),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 188 * 256 * 2.28e-3, 877.7 / 2, 512 / 8 * 28e-3),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 188 * 256 * 2.617e-3, 1007.6 / 2, 512 / 8 * 28e-3),
        # Compute units, FLOP of each and clock, GHz.
        ("AMD Instinct MI355X", 256 * 256 * 2.4e-3, 256 * 4096 * 2.4e-3, 8),
    ],
)
def test_a_peak_is_what_its_sheet_says_of_one_dense_gpu(
    name: str, fp32_tflops: float, dense_tflops: float, bandwidth_tb: float
) -> None:
    for precision, tflops in (("fp32", fp32_tflops), ("bf16", dense_tflops), ("fp16", dense_tflops)):
        peak = peak_of(name, cast(Precision, precision))
        assert isinstance(peak, Peak)
        assert peak.flops_per_second == pytest.approx(tflops * 1e12, rel=1e-3)
        assert peak.bandwidth_bytes_per_second == pytest.approx(bandwidth_tb * 1e12)
        assert peak.source.startswith(name.split()[0])


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H100",
        "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA A100X",
        "NVIDIA A1",
        "NVIDIA A800-SXM4-40GB",
        "NVIDIA A800 40GB Active",
        "NVIDIA H20-3e",
        "NVIDIA H800 NVL",
        "NVIDIA H100 96GB HBM3",
        "NVIDIA B300",
        "NVIDIA GB300 NVL72",
        "NVIDIA GB200 NVL72",
        "NVIDIA RTX PRO 6000 Blackwell",
        "NVIDIA RTX PRO 5000 Blackwell",
        "AMD Instinct MI350X",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3090 Ti",
        "nvidia h200",
        "",
    ],
)
def test_a_name_that_only_resembles_a_known_one_is_unknown(name: str) -> None:
    peak = peak_of(name, "bf16")
    assert isinstance(peak, Absent)
    assert f'"{name}"' in peak.reason
    assert "bench/results/mfu.py" in peak.reason


def test_fp32_is_the_rate_without_tf32() -> None:
    peak = peak_of("NVIDIA A100-SXM4-80GB", "fp32")
    assert isinstance(peak, Peak)
    assert peak.flops_per_second == pytest.approx(19.5e12)


@pytest.mark.parametrize(
    ("name", "fp8_tflops", "fp4_tflops"),
    [
        # Sparse rates of the sheets, halved; racks and boards by their GPUs.
        ("NVIDIA H100 80GB HBM3", 3958 / 2, None),
        ("NVIDIA H200 NVL", 3341 / 2, None),
        ("NVIDIA H20", 296, None),
        ("NVIDIA L40S", 1466 / 2, None),
        ("NVIDIA B200", 72_000 / 8 / 2, 144_000 / 8 / 2),
        ("NVIDIA GB200", 720_000 / 72 / 2, 1_440_000 / 72 / 2),
        ("NVIDIA GB300", 720_000 / 72 / 2, 1_080_000 / 72),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 2015.2 / 2, 4030.4 / 2),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 3511 / 4, 3511 / 2),
        ("AMD Instinct MI355X", 256 * 8192 * 2.4e-3, 256 * 16384 * 2.4e-3),
        ("NVIDIA A100-SXM4-80GB", None, None),
    ],
)
def test_fp8_and_fp4_have_dense_peaks_where_the_tensor_cores_know_them(
    name: str, fp8_tflops: float | None, fp4_tflops: float | None
) -> None:
    rates: tuple[tuple[PeakPrecision, float | None], ...] = (("fp8", fp8_tflops), ("fp4", fp4_tflops))
    for precision, tflops in rates:
        peak = peak_of(name, precision)
        if tflops is None:
            assert isinstance(peak, Absent)
            assert f"has no {precision} in its tensor cores" in peak.reason
        else:
            assert isinstance(peak, Peak)
            assert peak.flops_per_second == pytest.approx(tflops * 1e12, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "precision", "reason"),
    [
        ("NVIDIA B300 SXM6 AC", "fp4", "editions of its sheet differ"),
        ("NVIDIA GB300", "fp32", "rounds the rack's rate"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "bf16", "rounds it to whole sparse"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "fp8", "rounds it to whole sparse"),
    ],
)
def test_a_rate_that_a_sheet_does_not_state_is_absent_with_the_reason(
    name: str, precision: PeakPrecision, reason: str
) -> None:
    peak = peak_of(name, precision)
    assert isinstance(peak, Absent)
    assert reason in peak.reason


@pytest.mark.parametrize("name", ["Tesla V100-SXM2-16GB", "Tesla T4"])
def test_bf16_has_no_peak_where_the_tensor_cores_do_not_know_it(name: str) -> None:
    assert isinstance(peak_of(name, "fp16"), Peak)
    assert isinstance(peak_of(name, "bf16"), Absent)


def test_a_cpu_has_no_known_peak() -> None:
    peak = peak_of(None, "fp32")
    assert isinstance(peak, Absent)
    assert "CPU" in peak.reason
