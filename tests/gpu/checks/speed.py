"""Checks of speed: ceilings of matrix products and copies, and training beside the plainest loop of the same model."""

from __future__ import annotations

from collections.abc import Iterator

from bench.analysis.mfu import Peak
from bench.analysis.mfu import peak_of as peak_of_name
from collectors.metrics import probes as probes_metrics
from collectors.metrics import results
from tests.gpu.check import Finding, figure, holds, within
from tests.gpu.readings import Ran, Unreadable, ran, rows, told
from tests.gpu.session import Session
from workloads.spec import Precision

PCIE_5_X16 = 63.0
"""GB/s one way: 32 GT/s x 16 lanes x 128/130 / 8 bits. Source: PCI Express 5.0."""
PROMISED_RATE = 0.99
"""Of the plainest loop's step rate. Source: what this project holds itself to, tests/benchmarks/plain.py."""
NOISE = 0.02
"""By which two runs of one loop on one GPU may differ, its clocks among the causes."""
LARGE = 4096
"""Rows from which on a product takes so long that its launch is nothing beside it."""
RECOMPUTED = (1.15, 1.45)
"""Times the step of no checkpointing: 4/3 where backward is twice forward. Source: Korthikanti et al. 2022, 30-40 %."""


def matmul_bf16(session: Session) -> Iterator[Finding]:
    """Our rates of products by size, beside those of a CUDA graph, in which no launch is timed."""
    largest = "256" if session.is_rehearsal else "8192"
    sizes = "256" if session.is_rehearsal else "256,512,1024,2048,4096,8192"
    (done,) = session.commands.run(
        session.observed("matmul", "--precision", session.half, "--option", f"max_size={largest}")
    )
    (graph,) = session.commands.run(session.script("matmul", "--sizes", sizes))
    run, replayed = ran(done), told(graph)["flops_per_second"]
    ours = {size: flops for (size, _, _), flops in run.values(probes_metrics.RUN_MATMUL_FLOPS).items()}
    yield _of_peak(run, "largest product", "bf16", max(ours.values()), key="flops")
    for size, flops in ours.items():
        if size in replayed:
            text = f"{flops / 1e12:.4g} of {replayed[size] / 1e12:.4g} TFLOP/s in a graph"
            if int(size) >= LARGE:
                yield within(
                    f"{size} rows, ours / graph",
                    flops / replayed[size],
                    low=0.8,
                    high=1.2,
                    source="the same kernels; a power cap moves either",
                )
            else:
                yield figure(f"{size} rows", text, beside="equal, where launches are not timed")


def matmul_fp32(session: Session) -> Iterator[Finding]:
    """Whether fp32 is computed as such: TF32 would be above the data sheet's fp32."""
    largest = "256" if session.is_rehearsal else "8192"
    (done,) = session.commands.run(session.observed("matmul", "--precision", "fp32", "--option", f"max_size={largest}"))
    run = ran(done)
    yield _of_peak(run, "largest product", "fp32", max(run.values(probes_metrics.RUN_MATMUL_FLOPS).values()))


def copies(session: Session) -> Iterator[Finding]:
    """Bytes a second within the GPU, and between it and its host."""
    size = ("--option", "size_bytes=1048576") if session.is_rehearsal else ()
    (done,) = session.commands.run(session.observed("copies", *size))
    run = ran(done)
    peak = peak_of_name(_device_name(run), "bf16")
    for (kind, _), rate in run.values(probes_metrics.RUN_COPY_BANDWIDTH).items():
        if kind == "device_copy" and isinstance(peak, Peak):
            yield within(
                f"{kind} / data sheet",
                rate / peak.bandwidth_bytes_per_second,
                high=1.0,
                source=f"{peak.source}: {peak.bandwidth_bytes_per_second / 1e9:g} GB/s",
            )
        elif kind in ("host_to_device", "device_to_host") and "H" in _device_name(run):
            yield within(kind, rate / 1e9, high=PCIE_5_X16, unit="GB/s", source="PCI Express 5.0 x16, one way")
        else:
            yield figure(kind, rate / 1e9, unit="GB/s")


def training(session: Session) -> Iterator[Finding]:
    """`single` beside the plainest loop of the same model: rate, peak of memory, MFU."""
    words = ("--precision", session.half, "--steps", session.count(20), "--trace-steps", session.count(3))
    (done,) = session.commands.run(session.observed("single", *session.shape("1b", 8), *words))
    shape = ("--shape", "tiny") if session.is_rehearsal else ("--shape", "1b")
    (beside,) = session.commands.run(
        session.script(
            "plain_training", *shape, "--batch", "8", "--steps", session.count(20), "--precision", session.half
        )
    )
    run, plain = ran(done), told(beside)
    step_s = run.value(results.RUN_STEP_SECONDS)
    yield figure("median step", 1e3 * step_s, unit="ms", key="step_ms")
    if session.is_rehearsal:
        yield figure("our step rate / the plain loop's", plain["step_s"] / step_s)
        return
    yield within(
        "our step rate / the plain loop's",
        plain["step_s"] / step_s,
        low=PROMISED_RATE - NOISE,
        source=f"promise of {PROMISED_RATE} less {NOISE:g} of noise, one run each",
    )
    yield figure("model FLOP/s", run.value(results.RUN_FLOPS) / 1e12, unit="TFLOP/s")
    peak_bytes = run.value(results.RUN_PEAK_MEMORY_BYTES, account="allocator")
    yield figure("peak of memory", peak_bytes / 2**30, unit="GiB", key="peak_gib")
    yield within(
        "our peak / the plain loop's",
        peak_bytes / plain["peak_bytes"],
        low=0.95,
        high=1.05,
        source="torch.cuda.max_memory_allocated of the same model, a twentieth for the loader's batches",
    )
    mfu = run.values(results.RUN_MFU)
    if mfu:
        beside_text = "torchtitan's 8B on 8 H100: 0.33 eager, 0.39 compiled"
        yield within("MFU", next(iter(mfu.values())), high=1.0, source=f"a share of the data sheet; {beside_text}")


def compiled(session: Session) -> Iterator[Finding]:
    """The same, with its blocks compiled."""
    words = ("--precision", session.half, "--steps", session.count(20), "--trace-steps", session.count(3))
    run = _one(session, *words, "--option", "compile=default")
    yield from _against_plain(session, run, "eager's step / compiled", low=1.0, why="compiling is to be faster")
    yield from _kernels(session, run)


def cuda_graphs(session: Session) -> Iterator[Finding]:
    """The same, replayed from CUDA graphs: shares of a step still add up."""
    words = ("--precision", session.half, "--steps", session.count(20), "--trace-steps", session.count(3))
    run = _one(session, *words, "--option", "compile=reduce-overhead")
    yield from _against_plain(session, run, "eager's step / replayed", low=1.0, why="replaying is to be faster")
    shares = run.values(results.RUN_TRACED_RATIO)
    known = {part: share for (part,), share in shares.items()}
    yield figure("parts of a traced step", ", ".join(f"{part} {share:.3f}" for part, share in known.items()))
    for part in ("compute", "idle"):
        if part not in known:
            raise Unreadable(f"the run has no share {part}; notes: {'; '.join(run.summary.notes)}")
    yield within(
        "compute + idle + exposed", sum(known.get(part, 0.0) for part in _EXCLUSIVE), low=0.98, high=1.02, source=_SUM
    )


_EXCLUSIVE = ("compute", "idle", "exposed_communication", "exposed_copy")
_SUM = "the parts exclude each other and are all of a step, but for medians over steps"


def checkpointed(session: Session) -> Iterator[Finding]:
    """Recomputed activations: less memory for more time."""
    words = ("--precision", session.half, "--steps", session.count(10), "--trace-steps", "0")
    for kind in ("full", "selective"):
        run = _one(session, *words, "--option", f"checkpoint={kind}")
        before = session.earlier("training")
        step_ms = 1e3 * run.value(results.RUN_STEP_SECONDS)
        if "step_ms" not in before:
            yield figure(f"{kind}, median step", step_ms, unit="ms", beside="the check `training` has none to compare")
        elif kind == "full" and not session.is_rehearsal:
            low, high = RECOMPUTED
            yield within("full, times the step", step_ms / before["step_ms"], low=low, high=high, source=RECOMPUTED_BY)
        else:
            yield figure(f"{kind}, times the step", step_ms / before["step_ms"])
        if "peak_gib" in before:
            peak_gib = run.value(results.RUN_PEAK_MEMORY_BYTES, account="allocator") / 2**30
            yield within(
                f"{kind}, peak / without", peak_gib / before["peak_gib"], high=1.0, source="it keeps fewer tensors"
            )


RECOMPUTED_BY = "forward again: 4/3 of the FLOPs; Korthikanti et al. 2022 measure 30-40 %"


def attention(session: Session) -> Iterator[Finding]:
    """torch's attention kernels beside each other: speed to keep, results that agree."""
    shapes = "1x2x64x16" if session.is_rehearsal else "8x32x2048x64,1x32x8192x128"
    (done,) = session.commands.run(session.script("attention", "--shapes", shapes))
    for shape, kernels in told(done)["kernels"].items():
        for name, one in kernels.items():
            if "refused" in one:
                yield figure(f"{name} at {shape}", f"refused: {one['refused'][:100]}")
                continue
            yield figure(f"{name} at {shape}", 1e3 * one["step_s"], unit="ms forward and backward")
            if "apart" in one:
                yield within(
                    f"{name} at {shape}, apart from flash",
                    one["apart"],
                    high=3e-2,
                    source="LIMITS of bf16, specs/spec.py",
                )


def _one(session: Session, *words: str) -> Ran:
    (done,) = session.commands.run(session.observed("single", *session.shape("1b", 8), *words))
    return ran(done)


def _against_plain(session: Session, run: Ran, what: str, *, low: float, why: str) -> Iterator[Finding]:
    step_ms = 1e3 * run.value(results.RUN_STEP_SECONDS)
    before = session.earlier("training")
    yield figure("median step", step_ms, unit="ms")
    if "step_ms" in before and not session.is_rehearsal:
        yield within(what, before["step_ms"] / step_ms, low=low, source=f"{why}; step of the check `training`")


def _kernels(session: Session, run: Ran) -> Iterator[Finding]:
    """Whether kernels that the compiler made count as computing."""
    (done,) = session.commands.run(session.analysed("kernels", run.folder / "rank0.timeline.npz"))
    made = {str(row["kind"]) for row in rows(told(done), "kernels") if "triton" in str(row["name"])}
    if made:
        yield holds(
            "kind of Triton's kernels",
            made == {"compute"},
            seen=", ".join(sorted(made)),
            expected="compute",
            source="they compute",
        )
    else:
        yield figure("kind of Triton's kernels", "none was seen")


def _of_peak(run: Ran, what: str, precision: Precision, flops: float, key: str | None = None) -> Finding:
    peak = peak_of_name(_device_name(run), precision)
    if not isinstance(peak, Peak):
        return figure(what, flops / 1e12, unit="TFLOP/s", beside=peak.reason, key=key)
    return within(
        f"{what} / data sheet",
        flops / peak.flops_per_second,
        high=1.0,
        source=f"{peak.source}: {peak.flops_per_second / 1e12:g} TFLOP/s",
        key=key,
    )


def _device_name(run: Ran) -> str:
    """The GPU's name out of `1 x NVIDIA H200`."""
    return run.summary.hardware.partition(" x ")[2].partition(",")[0] or run.summary.hardware
