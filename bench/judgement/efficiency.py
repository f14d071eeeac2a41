"""How much of a device's peak the model's arithmetic takes up: model FLOP/s and MFU."""

from __future__ import annotations

from dataclasses import dataclass

from bench.peaks import Absent, Peak
from workloads.parts.shape import Formula, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Mfu:
    """Model FLOP/s of a device, as a share of its peak.

    formula: how the model's FLOPs are counted, see `workloads.parts.shape.Formula`.
    peak: what it is a share of, with its source.
    """

    ratio: float
    flops_per_second: float
    formula: Formula
    peak: Peak


def flops_per_second_per_device(shape: Shape, ranks: int, step_s: float, formula: Formula = "palm") -> float:
    """Model FLOPs of one step, divided by its time and the ranks."""
    return shape.flops_per_step(formula) / (step_s * ranks)


def mfu(shape: Shape, ranks: int, step_s: float, peak: Peak | Absent, formula: Formula = "palm") -> Mfu | Absent:
    """Model FLOPs utilisation, absent where the peak is, and where it would exceed 1.

    A device cannot do more than its peak: then the time, the device or the formula is wrong, and a figure would hide
    it. palm counts attention in full, so a causal kernel on a very long sequence may exceed it honestly.
    Source: Chowdhery et al. 2022, PaLM, appendix B.
    """
    if isinstance(peak, Absent):
        return peak
    achieved = flops_per_second_per_device(shape, ranks, step_s, formula)
    ratio = achieved / peak.flops_per_second
    if ratio > 1:
        return Absent(
            reason=f"MFU would be {ratio:.2f}, which cannot be: {achieved / 1e12:.4g} TFLOP/s by {formula} in a step of"
            f" {step_s:.4g} s, of a peak of {peak.flops_per_second / 1e12:.4g} ({peak.device}, {peak.precision});"
            " check the step's time and the device"
        )
    return Mfu(ratio=ratio, flops_per_second=achieved, formula=formula, peak=peak)
