"""What all other checks stand on: versions, forked ranks, one rank, a message to oneself, a window, faults."""

from __future__ import annotations

import math
import re
import time
from pathlib import Path

import psutil
import pytest

from bench.engines.local import LocalEngine
from bench.engines.node.shutdown import ON_CUDA
from bench.machine.gpus import read_gpus
from bench.machine.machine import read as read_machine
from collectors.metrics import results
from collectors.metrics.gpu_health import GPU_XIDS
from collectors.nvml.collector import OPEN_S
from collectors.traces.timeline import load
from tests.gpu.programs import ROOT
from tests.gpu.readings import (
    RunReader,
    Unreadable,
    check_traffic,
    nvidia_smi,
    rows,
    run,
    script,
    smi_numbers,
)
from tests.gpu.session import Session

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(60)]

LEAST_DRIVER = {13: 580, 12: 525, 11: 450}
"""Major version of the driver that a CUDA of that major version needs. Source: CUDA release notes, table 2."""
COLLECTIVES = {"all_reduce", "all_gather", "reduce_scatter"}
"""What `scripts/selfring.py` calls."""
CAUSES = {"kill": "killed", "raise": "error", "hang": "hung", "leave": "left"}
"""The cause that a fault of a fire drill must be reported as."""
LIMIT_S = 20
"""Of a trial with a fault."""
STEP = 7
"""At which a fault happens."""


def test_versions(gpu: Session) -> None:
    """What is installed, and whether driver and torch fit each other."""
    if gpu.is_rehearsal:
        pytest.skip("it cannot be rehearsed on a CPU")
    start_s = time.perf_counter()
    gpus = read_gpus()
    gpu.within("NVML's start", time.perf_counter() - start_s, high=OPEN_S, unit="s", source="nvml/collector.py")
    gpu.figure("GPUs", ", ".join(device.name for device in gpus.gpus) or "none")
    machine = read_machine()
    cuda, driver, torch = str(machine.torch_cuda_version), str(gpus.driver_version), str(machine.torch_version)
    least = LEAST_DRIVER[_numbers(cuda)[0]]
    is_new = _numbers(driver)[0] >= least
    source = f"CUDA {cuda} release notes, minimum driver"
    gpu.holds("driver", is_new, seen=driver, expected=f"{least} or newer", source=source)
    is_supported = (2, 11) <= _numbers(torch)[:2] < (2, 16)
    gpu.holds("torch", is_supported, seen=torch, expected="2.11 to 2.15", source="pyproject.toml")
    gpu.figure("/proc/1/sched", "there" if Path("/proc/1/sched").exists() else "missing")
    gpu.figure("nvidia-smi -q", f"{len(nvidia_smi(gpu, '-q').splitlines())} lines, in the check's folder")


def test_fork(gpu: Session) -> None:
    """Whether ranks can be forked: the forkserver must not have touched CUDA."""
    with LocalEngine(gpu.folder) as engine:
        engine.machine()
        children = psutil.Process().children(recursive=True)
        servers = [child for child in children if any("multiprocessing.forkserver" in word for word in child.cmdline())]
        maps = [Path(f"/proc/{server.pid}/maps").read_text() for server in servers]
    if not maps:
        raise Unreadable("the agent's processes include no forkserver")
    is_loaded = any("libcuda.so" in text for text in maps)
    seen = "libcuda.so" if is_loaded else "none of CUDA"
    source = "CUDA does not outlive a fork (CUDA C programming guide, 3.2.2)"
    gpu.holds("libraries in our forkserver", not is_loaded, seen=seen, expected="no libcuda", source=source)


@pytest.mark.parametrize("precision", ["half", "fp16"])
def test_single(gpu: Session, precision: str) -> None:
    """The shortest run: one rank, a process group of its own, a loader's worker, no profiler; fp16 with a scaler."""
    precision = gpu.half if precision == "half" else precision
    single = run(gpu, "single", "--precision", precision, "--steps", "5", "--trace-steps", "0")
    gpu.figure("run", single.completed.elapsed_s, "s")
    gpu.figure("median step", 1e3 * single.value(results.RUN_STEP_SECONDS), "ms")
    source = "ln 512 = 6.24 of tokens by chance; it falls"
    gpu.within("loss after 10 steps", single.value(results.RUN_LOSS), high=6.5, source=source)


def test_selfring(gpu: Session) -> None:
    """How the profiler and the Flight Recorder call functional gathers and a message to oneself."""
    ring = script(gpu, "selfring")
    seen, source = ", ".join(ring["entered"]), "what the script calls; recorded as " + ", ".join(ring["titles"])
    is_readable = set(ring["entered"]) <= COLLECTIVES
    expected = f"only {', '.join(sorted(COLLECTIVES))}"
    gpu.holds("collectives by our reader", is_readable, seen=seen, expected=expected, source=source)
    if ring["backend"] != "nccl":
        return
    seen = "whole" if ring["is_message_whole"] else "other bytes"
    gpu.holds("message to oneself", ring["is_message_whole"], seen=seen, expected="whole", source="what was sent")
    gpu.within("messages in the Flight Record", ring["messages"], low=1, source="is_p2p of its entries")
    kernels = [kernel for kernel in ring["kernels"] if "nccl" in kernel["name"].lower()]
    gpu.figure("kernels of NCCL", "; ".join(sorted({kernel["name"] for kernel in kernels})) or "none")
    words = [str(kernel["words"]) for kernel in kernels if "SendRecv" in kernel["name"]]
    compare = "none: endCoalescing records no operator (torch 2.11)"
    gpu.figure("words of the message's kernel", words[0] if words else "no such kernel", compare=compare)


def test_window(gpu: Session) -> None:
    """One traced window: the device's spans, equal to kineto's file, and the kernels of a plain profile."""
    words = ("--precision", gpu.half, "--steps", "5", "--trace-steps", "3", "--keep-traces")
    folder = run(gpu, "single", *gpu.shape("125m", 8), *words).folder
    files = (folder / "rank0.timeline.npz", folder / "rank0.trace.json.gz")
    ours, kineto = (
        rows(done, "traces") for done in gpu.programs.run(*(gpu.analysed("summary", file) for file in files))
    )
    source = "kineto writes microseconds with decimals"
    gpu.within("figures of npz and json.gz apart", most_apart_ns(ours, kineto), high=1000, unit="ns", source=source)
    if gpu.is_rehearsal:
        return
    window = load(files[0])
    seen = "the device's" if window.is_device else "the host's"
    gpu.holds("spans", window.is_device, seen=seen, expected="the device's", source="CUPTI ran")
    computing = window.of_kind("compute")
    work_s = float((window.end_ns[computing] - window.start_ns[computing]).sum()) / 1e9 / len(window.steps())
    plain_s = script(gpu, "plain_training", "--shape", "125m", "--steps", "5", "--precision", gpu.half)["kernel_s"]
    source = (
        f"key_averages of the same model in torch.profiler, {1e3 * plain_s:.4g} ms; a GPU's clock moves some percent"
    )
    gpu.within("kernels of a step, ours / plain profile's", work_s / plain_s, low=0.9, high=1.1, source=source)


def most_apart_ns(ours: list[dict[str, object]], theirs: list[dict[str, object]]) -> int:
    """Return the largest difference of two such tables in nanoseconds; a value that only one has fails."""
    apart = 0
    for left, right in zip(ours, theirs, strict=True):
        for name in left.keys() - {"rank", "overlap_share", "exposed_share", "idle_share"}:
            values = left[name], right[name]
            assert (values[0] is None) == (values[1] is None), f"{name}: {values}"
            if isinstance(values[0], int) and isinstance(values[1], int):
                apart = max(apart, abs(values[0] - values[1]))
    return apart


@pytest.mark.parametrize("fault", ["kill", "raise", "hang"])
def test_faults(gpu: Session, fault: str) -> None:
    """A fault in the only rank: the cause is named, memory comes back; a killed rank may leave an XID."""
    before_mib = 0.0 if gpu.is_rehearsal else _used_mib(gpu)
    blamed = drill(gpu, "single", fault, 1, *gpu.shape("125m", 8), "--precision", gpu.half)
    samples = [sample for sample in blamed.node_samples() if sample.metric == GPU_XIDS.name and sample.value]
    xids = ", ".join(sorted({sample.labels["xid"] for sample in samples})) or "none"
    gpu.figure("XIDs", xids, compare="none, or 43 and 45 of a process that ended")
    if not gpu.is_rehearsal:
        grown_mib = _used_mib(gpu) - before_mib
        source = "no process is left"
        gpu.within("memory in use afterwards, less before", grown_mib, high=100, unit="MiB", source=source)


def drill(gpu: Session, strategy: str, fault: str, ranks: int, *words: str) -> RunReader:
    """Run a strategy with a fault in its last rank, which must be blamed; its peers must end."""
    culprit = ranks - 1
    size = ("--ranks", str(ranks), "--steps", "20", "--limit", str(LIMIT_S))
    (completed,) = gpu.programs.run(gpu.observed(strategy, *size, *words, "--inject", f"{fault}@{culprit}:{STEP}"))
    blamed = RunReader(completed)
    cause = blamed.summary.cause
    is_right = completed.code == 3 and cause is not None and (cause.kind, cause.rank) == (CAUSES[fault], culprit)
    expected = f"code 3, {CAUSES[fault]}, rank {culprit}"
    gpu.holds("blamed", is_right, seen=str(blamed), expected=expected, source="the injected fault")
    source = f"the limit of {LIMIT_S} s for the trial, and as much to start and end"
    gpu.within("command ended after", completed.elapsed_s, high=2.0 * LIMIT_S, unit="s", source=source)
    return blamed


def test_leaving(gpu: Session) -> None:
    """How long the driver holds a process that left with work queued; our limits must be above that."""
    left = script(gpu, "leaving")
    gpu.figure("held", left["held_bytes"] / 2**30, "GiB")
    source = "bench.engines.node.shutdown.ON_CUDA"
    gpu.within("process gone after", left["gone_s"], high=ON_CUDA.killed_s, unit="s", source=f"{source}.killed_s")
    if not gpu.is_rehearsal:
        free_s = math.inf if left["free_s"] is None else left["free_s"]
        limit_s = ON_CUDA.killed_s + ON_CUDA.freed_s
        gpu.within("memory free after", free_s, high=limit_s, unit="s", source=f"{source}.killed_s and freed_s")


@pytest.mark.parametrize("folder", ["collectors", "workloads"])
def test_marked_tests(gpu: Session, folder: str) -> None:
    """The tests elsewhere that are marked gpu, in a process that may crash."""
    if gpu.is_rehearsal:
        pytest.skip("it cannot be rehearsed on a CPU")
    words = ("-m", "gpu", "-W", "default", "-p", "no:cacheprovider", "-q")
    (completed,) = gpu.programs.run(("pytest", *words, *marked_files(folder)))
    lines = completed.out.strip().splitlines() or [str(completed)]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    is_fine = completed.code == 0 and "passed" in lines[-1]
    gpu.holds(
        "tests", is_fine, seen="; ".join([lines[-1], *failed]), expected="all pass", source="the tests themselves"
    )
    gpu.figure("warnings of forks", str(len(re.findall(r"DeprecationWarning: This process .* fork", completed.out))))


def marked_files(folder: str) -> list[str]:
    """Return the files below a folder of tests that have tests marked gpu."""
    return [
        str(path) for path in sorted((ROOT / "tests" / folder).rglob("test_*.py")) if "mark.gpu" in path.read_text()
    ]


def test_cpu_ranks(gpu: Session) -> None:
    """Ranks on the CPU of a GPU machine, where torch's device mesh makes other groups: traffic by law."""
    words = ("--ranks", "2", "--device", "cpu", "--steps", "5", "--trace-steps", "2")
    check_traffic(gpu, "ddp on 2 CPU ranks", run(gpu, "ddp", *words))


def _used_mib(gpu: Session) -> float:
    return sum(row[0] or 0.0 for row in smi_numbers(gpu, "memory.used"))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0]))
