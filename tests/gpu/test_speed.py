"""Speed: ceilings of matrix products and copies, and training compared with the plainest loop of the same model."""

from __future__ import annotations

import pytest

from bench.results.mfu import Peak, peak_of
from collectors.metrics import probes, results
from tests.gpu.readings import RunReader, rows, run, script
from tests.gpu.session import Session
from workloads.spec import Precision

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(60)]

PCIE_5_X16 = 63.0
"""GB/s one way: 32 GT/s x 16 lanes x 128/130 / 8 bits. Source: PCI Express 5.0."""
LEAST_RATE = 0.97
"""Of the plainest loop's step rate: the promise of 0.99 (tests/benchmarks/plain.py), less noise of one run each."""
OBSERVER_SHARE = 0.01
"""Of the median step, at steps of 50 ms or more. Source: docs/measured/costs.md."""
PARTS = ("compute", "idle", "exposed_communication", "exposed_copy")
"""Of a traced step; they exclude each other."""


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_matmul(gpu: Session, precision: Precision) -> None:
    """The rate of the largest product; TF32 would be above the data sheet's fp32."""
    words = ("fp32", "256") if gpu.is_rehearsal else (precision, "8192")
    products = run(gpu, "matmul", "--precision", words[0], "--option", f"max_size={words[1]}")
    flops = max(products.values(probes.RUN_MATMUL_FLOPS).values())
    gpu.figure("largest product", flops / 1e12, "TFLOP/s")
    peak = peak_of(_device_name(products), precision)
    if isinstance(peak, Peak):
        gpu.within("largest product / data sheet", flops / peak.flops_per_second, high=1.0, source=peak.source)


def test_training(gpu: Session) -> None:
    """`single` compared with the plainest loop of the same model: rate, peak of memory, MFU, our own share."""
    words = ("--precision", gpu.half, "--steps", gpu.count(20), "--trace-steps", gpu.count(3))
    single = run(gpu, "single", *gpu.shape("1b", 8), *words)
    shape = ("--shape", "tiny" if gpu.is_rehearsal else "1b", "--batch", "8")
    plain = script(gpu, "plain_training", *shape, "--steps", gpu.count(20), "--precision", gpu.half)
    step_s = single.value(results.RUN_STEP_SECONDS)
    gpu.figure("median step", 1e3 * step_s, "ms", key="step_ms")
    source = "the promise of 0.99, less 0.02 of noise"
    gpu.within("our step rate / the plain loop's", plain["step_s"] / step_s, low=LEAST_RATE, source=source)
    share = single.value(results.RUN_OBSERVER_RATIO)
    gpu.within("observer's share", share, high=OBSERVER_SHARE, source="the promise, at steps of 50 ms or more")
    gpu.figure("model FLOP/s", single.value(results.RUN_FLOPS) / 1e12, "TFLOP/s")
    for mfu in single.values(results.RUN_MFU).values():
        source = "a share of the data sheet; torchtitan's 8B on 8 H100: 0.33 eager, 0.39 compiled"
        gpu.within("MFU", mfu, high=1.0, source=source)
    if not gpu.is_rehearsal:
        peak_bytes = single.value(results.RUN_PEAK_MEMORY_BYTES, account="allocator")
        gpu.figure("peak of memory", peak_bytes / 2**30, "GiB")
        source = "max_memory_allocated of the same model, a twentieth for the loader's batches"
        gpu.within("our peak / the plain loop's", peak_bytes / plain["peak_bytes"], low=0.95, high=1.05, source=source)
    kernels = rows(gpu.programs.run(gpu.analysed("kernels", single.folder / "rank0.timeline.npz"))[0], "kernels")
    names = {
        str(row["name"])[:80] for row in kernels if any(word in str(row["name"]) for word in ("cudnn", "flash", "fmha"))
    }
    gpu.figure("attention's kernels", "; ".join(sorted(names)) or "none of these names")


@pytest.mark.parametrize("option", ["compile=default", "compile=reduce-overhead"])
def test_option(gpu: Session, option: str) -> None:
    """The model of `training` with compiled blocks, then with CUDA graphs: time and trace."""
    words = ("--precision", gpu.half, "--steps", gpu.count(20), "--trace-steps", gpu.count(3), "--option", option)
    single = run(gpu, "single", *gpu.shape("1b", 8), *words)
    step_ms = 1e3 * single.value(results.RUN_STEP_SECONDS)
    gpu.figure("median step", step_ms, "ms")
    training = gpu.earlier("training")
    if "step_ms" in training:
        gpu.within("times the eager step", step_ms / training["step_ms"], high=1.0, source="compiling is to be faster")
    shares = {part: share for (part,), share in single.values(results.RUN_TRACED_RATIO).items() if part in PARTS}
    source = ", ".join(f"{part} {share:.3f}" for part, share in shares.items())
    gpu.within("sum of a step's parts", sum(shares.values()), low=0.98, high=1.02, source=source)
    kernels = rows(gpu.programs.run(gpu.analysed("kernels", single.folder / "rank0.timeline.npz"))[0], "kernels")
    kinds = {str(row["kind"]) for row in kernels if "triton" in str(row["name"])} or {"none"}
    is_fine, seen = kinds <= {"compute", "none"}, ", ".join(kinds)
    gpu.holds("kind of Triton's kernels", is_fine, seen=seen, expected="compute", source="they compute")


def test_copies(gpu: Session) -> None:
    """Bytes a second within the GPU, and between it and its host."""
    copies = run(gpu, "copies", *(("--option", "size_bytes=1048576") if gpu.is_rehearsal else ()))
    peak = peak_of(_device_name(copies), "bf16")
    for (kind, _), rate in copies.values(probes.RUN_COPY_BANDWIDTH).items():
        gpu.figure(kind, rate / 1e9, "GB/s")
        if kind == "device_copy" and isinstance(peak, Peak):
            share = rate / peak.bandwidth_bytes_per_second
            gpu.within(f"{kind} / data sheet", share, high=1.0, source=peak.source)
        elif kind in ("host_to_device", "device_to_host") and "H" in _device_name(copies):
            gpu.within(kind, rate / 1e9, high=PCIE_5_X16, unit="GB/s", source="PCI Express 5.0 x16, one way")


def _device_name(reader: RunReader) -> str:
    """Return the GPU's name out of `1 x NVIDIA H200`."""
    hardware = reader.summary.hardware
    return hardware.partition(" x ")[2].partition(",")[0] or hardware
