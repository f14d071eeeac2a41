"""Checks of what all others stand on: versions, forked ranks, one NCCL rank, the GPU tests, names of collectives."""

from __future__ import annotations

import re
from collections.abc import Iterator

from collectors.metrics import results
from collectors.nvml.collector import OPEN_S
from tests.gpu.check import Finding, NotHere, figure, holds, within
from tests.gpu.readings import Unreadable, last_lines, nvidia_smi, ran, summary_of, told
from tests.gpu.session import ROOT, Program, Session

LEAST_DRIVER = {13: 580, 12: 525, 11: 450}
"""Major version of the driver that a CUDA of that major version asks for. Source: CUDA release notes, table 2."""

SUPPORTED = ((2, 11), (2, 14))
"""torch from the first to below the second. Source: pyproject.toml."""

COLLECTIVES = {"all_reduce", "all_gather", "reduce_scatter"}
"""What `scripts/selfring.py` calls."""

GPU_TESTS = (
    "tests/collectors/nvml/test_real_gpu.py",
    "tests/collectors/rank/memory/test_allocator.py",
    "tests/collectors/rank/test_memory_history.py",
    "tests/collectors/rank/memory/test_state_bytes.py",
    "tests/collectors/rank/test_step_clock.py",
    "tests/collectors/rank/test_stopwatch.py",
    "tests/collectors/traces/reading/test_in_process.py",
    "tests/workloads/core/test_attention_kernels.py",
    "tests/workloads/probes/test_copies.py",
    "tests/workloads/probes/test_matmul.py",
)
"""Files with tests that are marked `gpu`; a test of this list compares it with the tree."""


def versions(session: Session) -> Iterator[Finding]:
    """What is installed, and whether driver and torch fit each other."""
    (done,) = session.commands.run(session.script("versions"))
    found = told(done)
    torch_version = _numbers(found["torch"])
    yield holds(
        "torch",
        SUPPORTED[0] <= torch_version[:2] < SUPPORTED[1],
        seen=f"{found['torch']}, CUDA {found['cuda']}, NCCL {found['nccl']}, cuDNN {found['cudnn']}",
        expected="torch 2.11 to 2.13",
        source="pyproject.toml",
    )
    yield figure("GPUs", ", ".join(found["gpus"]) or "none")
    if found["cuda"] is not None and found["driver"] is not None:
        least = LEAST_DRIVER.get(_numbers(found["cuda"])[0])
        yield holds(
            "driver",
            least is None or _numbers(found["driver"])[0] >= least,
            seen=found["driver"],
            expected=f"{least} or newer" if least else "no bound is known",
            source=f"CUDA {found['cuda']} release notes, minimum driver",
        )
    yield within(
        "NVML's first start", found["nvml_s"], high=OPEN_S, unit="s", source="collectors.nvml.collector.OPEN_S"
    )
    yield figure("/proc/1/sched", "there" if found["has_sched_file"] else "missing")
    yield figure(
        "nvidia-smi -q", f"{len(nvidia_smi(session.commands, '-q').splitlines())} lines, in the check's folder"
    )


def fork(session: Session) -> Iterator[Finding]:
    """Whether ranks can be forked: the forkserver must not have touched CUDA."""
    (done,) = session.commands.run(session.script("fork"))
    found = told(done)
    yield holds(
        "child of a plain parent",
        found["plain"]["lives"],
        seen="lives" if found["plain"]["lives"] else found["plain"]["said"],
        expected="lives",
        source="torch's notes on multiprocessing: CUDA can be started once after a fork",
    )
    profiled = found["profiled"]
    yield figure(
        "child of a parent that profiled",
        "lives" if profiled["lives"] else f"dies: {profiled['said']}",
        beside="dies where torch asks for the GPUs to profile (pytorch#190708)",
    )
    if found["loaded"] is None:
        raise Unreadable("no forkserver was found among the agent's processes")
    yield holds(
        "libraries in our forkserver",
        not found["loaded"],
        seen=", ".join(found["loaded"]) or "none of CUDA",
        expected="no libcuda",
        source="CUDA does not outlive a fork (CUDA C programming guide, 3.2.2)",
    )


def single(session: Session) -> Iterator[Finding]:
    """The shortest run there is: one rank, a process group of its own, a loader's worker, no profiler."""
    program = session.observed(
        "single", "--precision", session.half, "--steps", "5", "--trace-steps", "0", NCCL_DEBUG="INFO"
    )
    (done,) = session.commands.run(program)
    run = ran(done)
    yield holds("run", True, seen=f"done in {run.elapsed_s:.0f} s", expected="done", source="exit code 0")
    yield figure("median step", 1e3 * run.value(results.RUN_STEP_SECONDS), unit="ms")
    yield within(
        "loss after 10 steps",
        run.value(results.RUN_LOSS),
        high=6.5,
        source="ln 512 = 6.24 of tokens by chance; it falls",
    )
    said = (run.folder / "rank0.err").read_text(errors="replace")
    interfaces = sorted(set(re.findall(r"NET/(?:Socket|IB) ?: Using (.+)", said)))
    yield figure("NCCL's network", "; ".join(interfaces)[:200] or "it names none", beside="lo alone would do")


def gpu_tests(session: Session) -> Iterator[Finding]:
    """The tests of this tree that are marked `gpu`."""
    words = ("-m", "gpu", "-W", "default", "-p", "no:cacheprovider", "-q", *(str(ROOT / path) for path in GPU_TESTS))
    (done,) = session.commands.run(Program(("pytest", *words)))
    counts = pytest_counts(done.out)
    if not counts:
        raise Unreadable(f"pytest ended with code {done.code} and no summary: {last_lines(done)}")
    failed = [line.removeprefix("FAILED ") for line in done.out.splitlines() if line.startswith(("FAILED", "ERROR"))]
    yield holds(
        "tests",
        done.code == 0 and not failed and counts.keys() & {"failed", "error", "errors"} == set() and "passed" in counts,
        seen=", ".join(f"{count} {word}" for word, count in counts.items()) + "".join(f"; {one}" for one in failed),
        expected="all pass",
        source="the tests themselves",
    )
    yield figure("warnings of forks", str(len(re.findall(r"DeprecationWarning: This process .* fork", done.out))))


def selfring(session: Session) -> Iterator[Finding]:
    """How functional gathers and a message to oneself are called by the profiler and the Flight Recorder."""
    (done,) = session.commands.run(session.script("selfring"))
    found = told(done)
    unknown = set(found["entered"]) - COLLECTIVES
    yield holds(
        "collectives by our reader",
        not unknown,
        seen=", ".join(found["entered"]),
        expected=f"of {', '.join(sorted(COLLECTIVES))}",
        source="what the script calls; recorded as " + ", ".join(found["titles"]),
    )
    if found["backend"] != "nccl":
        return
    yield holds(
        "message to oneself",
        found["is_message_whole"],
        seen="whole" if found["is_message_whole"] else "other bytes",
        expected="whole",
        source="what was sent",
    )
    yield within("messages in the Flight Record", found["messages"], low=1, source="is_p2p of its entries")
    kernels = [one for one in found["kernels"] if "nccl" in one["name"].lower()]
    yield figure("kernels of NCCL", "; ".join(sorted({one["name"] for one in kernels})) or "none")
    words = [one["words"] for one in kernels if "SendRecv" in one["name"]]
    yield figure(
        "words of the message's kernel",
        str(words[0]) if words else "no such kernel",
        beside="none: endCoalescing records no operator (torch 2.11)",
    )


def refusals(session: Session) -> Iterator[Finding]:
    """Strategies of messages on gloo with tensors of a GPU: one sentence, and no crash."""
    if session.is_rehearsal:
        raise NotHere("on a CPU gloo sends messages, and nothing is to be refused")
    strategies = ("one_f_one_b", "ring_attention")
    programs = [session.observed(name, "--backend", "gloo", "--ranks", "2", "--limit", "20") for name in strategies]
    for strategy, done in zip(strategies, session.commands.run(*programs), strict=True):
        lines = done.err.strip().splitlines()
        yield holds(
            strategy,
            done.code == 2 and "gloo" in done.err,
            seen=f"code {done.code}: {lines[-1] if lines else 'nothing said'}",
            expected="code 2 and a sentence about gloo",
            source="ProcessGroupGloo::send hands the device's address to a TCP pair",
        )


def deepspeed(session: Session) -> Iterator[Finding]:
    """DeepSpeed's engine on one rank, stage by stage."""
    for stage in ("0", "2", "3"):
        words = ("--ranks", "1", "--steps", session.count(10), "--trace-steps", "2", "--option", f"stage={stage}")
        (done,) = session.commands.run(session.observed("deepspeed", *words))
        if done.code == 2:
            yield figure(f"stage {stage}", f"refused: {last_lines(done)}")
            continue
        summary = summary_of(done)
        yield holds(
            f"stage {stage}",
            summary.outcome == "done",
            seen=f"{summary.outcome} in {done.elapsed_s:.0f} s" + (f": {summary.cause.text}" if summary.cause else ""),
            expected="done",
            source="exit code 0",
        )


def pytest_counts(out: str) -> dict[str, int]:
    """Of the last line of pytest's summary, such as `3 passed, 1 skipped in 2.1s`: how many of each."""
    for line in reversed(out.splitlines()):
        found = re.findall(r"(\d+) (passed|failed|errors?|skipped|deselected|xfailed|warnings?)", line)
        if found and re.search(r" in [\d.]+s", line):
            return {word: int(count) for count, word in found}
    return {}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0]))
