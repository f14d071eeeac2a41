"""Model FLOPs utilisation (MFU): model FLOP/s of a device, divided by its peak from the maker's data sheet.

Peaks are dense figures: if a sheet gives only the sparse figure, half of it. fp32 is computed without TF32, so on
NVIDIA it is the rate outside the tensor cores; AMD's matrix cores compute true fp32, so their rate counts. A device's
name must match in full: MIG instances and cut-down models with similar names have other peaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from workloads.cost_models.absent import Absent
from workloads.cost_models.shape import Shape
from workloads.spec import Precision

PeakPrecision: TypeAlias = Precision | Literal["fp8", "fp4"]
"""Precisions for which data sheets give peaks; no case computes in fp8 or fp4 yet."""
PEAK_PRECISIONS: tuple[PeakPrecision, ...] = ("fp32", "fp16", "bf16", "fp8", "fp4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Peak rates of one device at one precision. source: the data sheet."""

    device: str
    precision: PeakPrecision
    flops_per_second: float
    bandwidth_bytes_per_second: float
    source: str


@dataclass(frozen=True, slots=True)
class _Sheet:
    """A data sheet in its own units: names as in CUDA, NVML and ROCm, TFLOP/s, GB/s.

    half: fp16 with fp32 accumulation, and bf16. has_bf16: the tensor cores compute in bf16. fp8, fp4: with fp32
    accumulation; None if the tensor cores do not support it. unsure: why the sheet gives no usable figure, by field;
    that field is then None.
    """

    names: tuple[str, ...]
    fp32: float | None
    half: float | None
    bandwidth: float
    source: str
    has_bf16: bool = True
    fp8: float | None = None
    fp4: float | None = None
    unsure: Mapping[str, str] = field(default_factory=dict)


_V100 = "NVIDIA V100 data sheet, 2020"
_A100 = "NVIDIA A100 data sheet, 2021"
_H100 = "NVIDIA H100 architecture white paper and data sheet, 2023"
_H100_NVL = "NVIDIA H100 data sheet, 2024; half of the sparse 1671"
_H200 = "NVIDIA H200 data sheet, 2024; half of the sparse 1979"
_H200_NVL = "NVIDIA H200 data sheet, 2024; half of the sparse 1671"
_A800 = "NVIDIA A800 data sheet, 2022"
_H800 = "NVIDIA H800 data sheet, 2023; half of the sparse 1979"
_H800_PCIE = "NVIDIA H800 data sheet, 2023; half of the sparse 1513"
_GH200 = "NVIDIA GH200 data sheet, 2024; half of the sparse 1979"
_B200 = "NVIDIA HGX B200 data sheet, 2025, for each GPU; half of the sparse 4500"
_B100 = "NVIDIA Blackwell architecture technical brief, 2024, HGX B100, for each GPU; half of the sparse 3500"
_GB200 = "NVIDIA GB200 NVL72 data sheet, 2025, for each GPU; half of the sparse 5000"
_B300 = "NVIDIA HGX B300 data sheet, 2025, an eighth of the board; half of the sparse 4500"
_GB300 = (
    "NVIDIA GB300 NVL72 data sheet, 2025, a 72nd of the rack; half of the sparse 5000; fp4 as its dense 1080 PFLOP/s"
)
_MI250X = "AMD MI250X data sheet, 2021; half of the board, since each die is a device; fp32 of the matrix cores"

_RTX_PRO_6000 = "NVIDIA RTX Blackwell PRO GPU architecture white paper, 2025"
_RTX_PRO_6000_SERVER = "NVIDIA RTX PRO 6000 Blackwell Server Edition data sheet, 2025"
_MI355X = "AMD MI355X data sheet, 2025; fp32 of the matrix cores"

_SHEETS = (
    _Sheet(("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"), 15.7, 125, 900, _V100, has_bf16=False),
    _Sheet(("Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"), 14, 112, 900, _V100, has_bf16=False),
    _Sheet(("Tesla V100S-PCIE-32GB",), 16.4, 130, 1134, _V100, has_bf16=False),
    _Sheet(("Tesla T4",), 8.1, 65, 320, "NVIDIA T4 data sheet, 2019", has_bf16=False),
    _Sheet(("NVIDIA A10",), 31.2, 125, 600, "NVIDIA A10 data sheet, 2021"),
    _Sheet(("NVIDIA A10G",), 31.5, 70, 600, "NVIDIA A10G data sheet, 2022"),
    _Sheet(("NVIDIA A30",), 10.3, 165, 933, "NVIDIA A30 data sheet, 2021"),
    _Sheet(("NVIDIA A40",), 37.4, 149.7, 696, "NVIDIA A40 data sheet, 2020"),
    _Sheet(("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"), 19.5, 312, 1555, _A100),
    _Sheet(("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"), 19.5, 312, 2039, _A100),
    _Sheet(("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"), 19.5, 312, 1555, _A100),
    _Sheet(("NVIDIA A100 80GB PCIe",), 19.5, 312, 1935, _A100),
    _Sheet(("NVIDIA A800-SXM4-80GB",), 19.5, 312, 2039, _A800),
    _Sheet(("NVIDIA A800 80GB PCIe",), 19.5, 312, 1935, _A800),
    _Sheet(("NVIDIA L4",), 30.3, 121, 300, "NVIDIA L4 data sheet, 2023; half of the sparse 242", fp8=242.5),
    _Sheet(("NVIDIA L40",), 90.5, 181.05, 864, "NVIDIA L40 data sheet, 2022", fp8=362),
    _Sheet(("NVIDIA L40S",), 91.6, 362.05, 864, "NVIDIA L40S data sheet, 2023", fp8=733),
    _Sheet(("NVIDIA H100 80GB HBM3",), 66.9, 989.4, 3350, _H100, fp8=1978.9),
    _Sheet(("NVIDIA H100 PCIe",), 51.2, 756, 2039, _H100, fp8=1513),
    _Sheet(("NVIDIA H100 NVL",), 60, 835.5, 3938, _H100_NVL, fp8=1671),
    _Sheet(("NVIDIA H800",), 67, 989.5, 3350, _H800, fp8=1979),
    _Sheet(("NVIDIA H800 PCIe",), 51, 756.5, 2000, _H800_PCIE, fp8=1513),
    _Sheet(("NVIDIA H20",), 44, 148, 4000, "NVIDIA H20 data sheet, 2023", fp8=296),
    _Sheet(("NVIDIA H200",), 66.9, 989.4, 4800, _H200, fp8=1979),
    _Sheet(("NVIDIA H200 NVL",), 60, 835.5, 4800, _H200_NVL, fp8=1671),
    _Sheet(("NVIDIA GH200 480GB", "NVIDIA GH200 120GB"), 66.9, 989.4, 4000, _GH200, fp8=1979),
    _Sheet(("NVIDIA GH200 144G HBM3e",), 66.9, 989.4, 4900, _GH200, fp8=1979),
    _Sheet(("NVIDIA B100",), 60, 1750, 8000, _B100, fp8=3500, fp4=7000),
    _Sheet(("NVIDIA GB200",), 80, 2500, 8000, _GB200, fp8=5000, fp4=10000),
    _Sheet(("NVIDIA B200",), 75, 2250, 7700, _B200, fp8=4500, fp4=9000),
    _Sheet(
        ("NVIDIA B300 SXM6 AC",),
        75,
        2250,
        8000,
        _B300,
        fp8=4500,
        unsure={"fp4": "the editions of its sheet differ: 13.1 to 14 dense PFLOP/s"},
    ),
    _Sheet(
        ("NVIDIA GB300",),
        None,
        2500,
        8000,
        _GB300,
        fp8=5000,
        fp4=15_000,
        unsure={"fp32": "the sheet rounds the rack's rate to 6 PFLOP/s"},
    ),
    _Sheet(("AMD Instinct MI250X", "AMD Instinct MI250X/MI250"), 47.85, 191.5, 1638, _MI250X),
    _Sheet(
        ("AMD Instinct MI300X", "AMD Instinct MI300X OAM"),
        163.4,
        1307.4,
        5300,
        "AMD MI300X data sheet, 2023",
        fp8=2614.9,
    ),
    _Sheet(("AMD Instinct MI325X",), 163.4, 1307.4, 6000, "AMD MI325X data sheet, 2024", fp8=2614.9),
    _Sheet(("AMD Instinct MI355X", "AMD Instinct MI355X OAM"), 157.3, 2516.6, 8000, _MI355X, fp8=5033.2, fp4=10066.3),
    _Sheet(
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition",), 126, 503.8, 1792, _RTX_PRO_6000, fp8=1007.6, fp4=2015.2
    ),
    _Sheet(
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",),
        109.7,
        438.9,
        1792,
        _RTX_PRO_6000,
        fp8=877.7,
        fp4=1755.5,
    ),
    _Sheet(
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition",),
        120,
        None,
        1597,
        _RTX_PRO_6000_SERVER,
        unsure=dict.fromkeys(("half", "fp8", "fp4"), "the sheet rounds it to whole sparse PFLOP/s"),
    ),
    _Sheet(("NVIDIA GeForce RTX 3090",), 35.6, 71, 936, "NVIDIA Ampere GA102 white paper, 2021"),
    _Sheet(("NVIDIA GeForce RTX 4090",), 82.6, 165.2, 1008, "NVIDIA Ada white paper, 2022", fp8=330.3),
    _Sheet(
        ("NVIDIA GeForce RTX 5090",), 104.8, 209.5, 1792, "NVIDIA RTX Blackwell white paper, 2025", fp8=419, fp4=1676
    ),
)


def peak_of(device_name: str | None, precision: PeakPrecision) -> Peak | Absent:
    """Return the peak of one device; absent if it is unknown.

    device_name: as the driver names the GPU; None for a CPU, whose peak depends on its clock under load.
    """
    if device_name is None:
        return Absent(reason="the peak of a CPU is unknown: it depends on the clock under load")
    sheet = next((sheet for sheet in _SHEETS if device_name in sheet.names), None)
    if sheet is None:
        return Absent(reason=f'the peak of "{device_name}" is unknown; add a line for it to bench/results/mfu.py')
    name = "half" if precision in ("bf16", "fp16") else precision
    tflops: float | None = getattr(sheet, name)
    if name in sheet.unsure:
        return Absent(reason=f'the {precision} peak of "{device_name}" is unknown: {sheet.unsure[name]}')
    if tflops is None or (precision == "bf16" and not sheet.has_bf16):
        return Absent(reason=f'"{device_name}" has no {precision} in its tensor cores, so no peak for it')
    return Peak(
        device=device_name,
        precision=precision,
        flops_per_second=tflops * 1e12,
        bandwidth_bytes_per_second=sheet.bandwidth * 1e9,
        source=sheet.source,
    )


# Model FLOP/s and MFU


def flops_per_second_per_device(shape: Shape, ranks: int, step_s: float) -> float:
    """Return the model FLOPs of one step by PaLM's formula, per second of the step and per rank."""
    return shape.flops_per_step("palm") / (step_s * ranks)


def mfu(shape: Shape, ranks: int, step_s: float, peak: Peak | Absent) -> float | Absent:
    """Return model FLOPs utilisation; absent if the peak is absent, or if MFU would exceed 1.

    Above 1 the time, the device or the formula is wrong, and a figure would hide that. There is one legitimate
    exception: palm counts attention in full, so a causal kernel on a very long sequence may exceed 1. Source: Chowdhery
    et al. 2022, PaLM, appendix B.
    """
    if isinstance(peak, Absent):
        return peak
    achieved = flops_per_second_per_device(shape, ranks, step_s)
    ratio = achieved / peak.flops_per_second
    if ratio > 1:
        return Absent(
            reason=f"MFU would be {ratio:.2f}, which is impossible: {achieved / 1e12:.4g} TFLOP/s by palm in a step of"
            f" {step_s:.4g} s, of a peak of {peak.flops_per_second / 1e12:.4g} ({peak.device}, {peak.precision});"
            " check the step's time and the device"
        )
    return ratio
