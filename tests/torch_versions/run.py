"""Tests what a release of torch or Python may break, in an environment of each, and shows what each part took.

    python -m tests.torch_versions.run [--quick | --memory] VERSION ...

A VERSION is one of torch, such as 2.11, or of torch and Python, such as 2.13/3.12. `newest` is the newest torch in the
index that pip uses, whether or not the project allows it yet. Without --quick the strategies run and train as they do
elsewhere; with it, what a release of Python may break is tested: imports, what forks, one run. With --memory, the cost
model of memory is compared with torch's allocator on the fake CUDA. A last line for each environment that fails names
what breaks there.
Where the variable CI is set an environment that cannot be had is a failure; elsewhere it is told, and left out, which
is a failure if nothing else is tested, except with --memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.torch_versions.environments import (
    RELEASES,
    ROOT,
    Environment,
    NotToBeHad,
    find_interpreter,
    newest_torch,
)

Parts = Mapping[str, Sequence[str]]
"""Tests by the name of their part."""

NAMES = ("tests/torch_versions/imports.py",)
STRATEGIES = ("tests/torch_versions/each_strategy.py",)
FORKS = (
    "tests/torch_versions/test_before_the_fork.py",
    "tests/bench/engines/test_traced_trial.py",
    "tests/bench/rank/test_traced_window.py",
    "tests/collectors/rank/test_profiler.py",
    "tests/collectors/rank/test_memory_timeline.py",
    "tests/collectors/rank/test_flight_recorder.py",
    "tests/collectors/traces/reading/test_in_process.py",
    "tests/collectors/traces/reading/test_collectives_said.py",
    "tests/collectors/traces/reading/test_gloo_calls.py",
    "tests/collectors/traces/analyzers/memory/test_held_memory.py",
)
WORKLOADS = (
    "tests/workloads/test_parity.py",
    "tests/workloads/pipeline_parallel/test_pipelines.py",
    "tests/workloads/spec/test_states.py",
    "tests/workloads/core/test_attention_kernels.py",
    "tests/workloads/tensor_parallel/test_divided_gradients.py",
    "tests/workloads/core/test_mesh.py",
    "tests/workloads/tensor_parallel/test_tensor_parallel_parts.py",
)
PARITY = "tests/workloads/test_parity.py::test_losses_and_gradients_are_those_of_single"
PYTHON = (
    "tests/torch_versions/imports.py",
    "tests/torch_versions/test_before_the_fork.py",
    "tests/torch_versions/test_stable_abi.py",
    "tests/torch_versions/each_strategy.py::test_a_run_ends_well_and_has_its_figures[ddp]",
    f"{PARITY}[ddp fp32 learning_rate=0.0001]",
    f"{PARITY}[three_d fp32 learning_rate=0.0001]",
    "tests/bench/machine/doctor",
    "tests/bench/analysis",
    "tests/bench/report",
    "tests/bench/store",
    "tests/bench/cli/test_cli.py",
    "tests/bench/session/test_case.py",
    "tests/collectors/nvml",
    "tests/collectors/host",
    "tests/collectors/rank/test_profiler.py",
    "tests/collectors/traces/reading",
    "tests/workloads/spec",
    "tests/workloads/options",
    "tests/workloads/core/test_data.py",
    "tests/workloads/core/test_transformer.py",
)
FAKE_CUDA = ("tests/torch_versions/fake_cuda",)
FULL_PARTS: Parts = {"names": NAMES, "runs": STRATEGIES, "tracing": FORKS, "workloads": WORKLOADS}
FAKE_CUDA_RELEASE = "2.12"
"""The torch whose calls the fake CUDA answers. Under 2.15 DDP reads nothing from its first all_gather and fails."""
QUICK_PARTS: Parts = {"quick": PYTHON}
MEMORY_PARTS: Parts = {"memory": ("tests/torch_versions/fake_cuda/test_law.py",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What the table at the end shows for one part.

    said: pytest's own last line. first_failure: the test that failed first, with its message; None where all passed.
    """

    title: str
    part: str
    said: str
    elapsed_s: float
    first_failure: str | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", metavar="VERSION", type=_environment)
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="what a release of Python may break")
    extent.add_argument("--memory", action="store_true", help="peaks of memory on the fake CUDA")
    arguments = parser.parse_args()
    lines: list[Line] = []
    has_failed, tested = False, 0
    for environment in arguments.versions:
        try:
            lines.append(_ready(environment))
        except NotToBeHad as error:
            print(f"{environment.title} is not tested: {error}", file=sys.stderr, flush=True)
            has_failed |= bool(os.environ.get("CI")) and _has_interpreter(environment)
            continue
        parts = QUICK_PARTS if arguments.quick else MEMORY_PARTS if arguments.memory else FULL_PARTS
        if parts is FULL_PARTS and environment.torch == FAKE_CUDA_RELEASE:
            parts = {**parts, "fake CUDA": FAKE_CUDA}
        for line in run_parts(environment, parts):
            lines.append(line)
            has_failed |= line.first_failure is not None
            if has_failed and os.environ.get("CI"):
                break  # At once: what calls this has a limit, at which a failure would be forgotten.
        tested += 1
    for line in lines:
        said = line.said if line.first_failure is None else f"FAILED: {line.said}"
        print(f"{line.title:28} {line.part:12} {line.elapsed_s:7.1f} s  {said}")
    for breakage in breakages(lines):
        print(breakage)
    if not tested and not has_failed:
        print("nothing was tested", file=sys.stderr)
    return int(has_failed or not (tested or arguments.memory))


def _environment(text: str) -> Environment:
    torch, _, python = text.partition("/")
    if torch == "newest":
        try:
            torch = newest_torch()
        except NotToBeHad as error:
            raise argparse.ArgumentTypeError(f"the newest torch is unknown: {error}") from error
    elif torch not in RELEASES:
        raise argparse.ArgumentTypeError(f'torch "{torch}" is not tested; it may be {", ".join(RELEASES)} or newest')
    return Environment(torch=torch, python=python or None)


def _has_interpreter(environment: Environment) -> bool:
    try:
        find_interpreter(environment.python)
    except NotToBeHad:
        return False
    return True


def _ready(environment: Environment) -> Line:
    """Make the environment unless it stands."""
    started_s, stands = time.monotonic(), environment.stands()
    if not stands:
        print(f"{environment.title}: making {environment.folder.relative_to(ROOT)}", flush=True)
        environment.make()
    size = f"{environment.size_bytes() / 1e9:.2f} GB"
    return Line(
        title=environment.title,
        part="environment",
        said=f"{size}, {'stood' if stands else 'made'}",
        elapsed_s=time.monotonic() - started_s,
    )


def run_parts(environment: Environment, parts: Parts) -> Iterator[Line]:
    """Run the tests of each part in the environment, and print what pytest prints."""
    for part, tests in parts.items():
        started_s = time.monotonic()
        print(f"{environment.title}: {part}", flush=True)
        # Without -vv the list of failures is cut at 80 columns, which is where the message begins.
        command = [str(environment.executable), "-m", "pytest", "-vv", "-p", "no:cacheprovider"]
        last, failures = "", []
        with subprocess.Popen(
            [*command, "-p", "tests.torch_versions.chosen", *tests],
            cwd=ROOT,
            # The packages were installed without bytecode, and each of many processes would compile them anew.
            env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            stdout=subprocess.PIPE,
            text=True,
        ) as ended:
            assert ended.stdout is not None
            for text in ended.stdout:
                print(text, end="", flush=True)
                last = text.strip() or last
                if text.startswith(("FAILED ", "ERROR ")):
                    failures.append(text.strip().partition(" ")[2])
        code, said = ended.returncode, last.strip("= ")
        yield Line(
            title=environment.title,
            part=part,
            said=said,
            elapsed_s=time.monotonic() - started_s,
            # Without a list pytest itself broke off, and its last line says why.
            first_failure=None if code == 0 else next(iter(failures), said),
        )


def breakages(lines: Sequence[Line]) -> Iterator[str]:
    """Yield a line for each environment in which something fails: what breaks there, and its first failure."""
    failed = [line for line in lines if line.first_failure is not None]
    for title in dict.fromkeys(line.title for line in failed):
        parts = [f"{line.part} ({line.said}; first: {line.first_failure})" for line in failed if line.title == title]
        yield f"{title} breaks {', '.join(parts)}"


if __name__ == "__main__":
    sys.exit(main())
