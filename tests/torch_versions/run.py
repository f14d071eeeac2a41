"""Tests what a release of torch or Python may break, in an environment of each, and shows what each part took.

    python -m tests.torch_versions.run [--quick] VERSION ...

A VERSION is one of torch, such as 2.11, or of torch and Python, such as 2.13/3.12. Without --quick the strategies run
and train as they do elsewhere; with it, what a release of Python may break is tested: imports, what forks, one run.
Where the variable CI is set an environment that cannot be had is a failure; elsewhere it is told, and left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.torch_versions.environments import RELEASES, ROOT, Environment, NotToBeHad, find_interpreter

Parts = Mapping[str, Sequence[str]]
"""Tests by the name of their part."""

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
FULL_PARTS: Parts = {"runs": STRATEGIES, "tracing": FORKS, "workloads": WORKLOADS, "fake CUDA": FAKE_CUDA}
QUICK_PARTS: Parts = {"quick": PYTHON}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What is said of one part in the table at the end."""

    title: str
    part: str
    said: str
    elapsed_s: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", metavar="VERSION", type=_environment)
    parser.add_argument("--quick", action="store_true", help="what a release of Python may break")
    arguments = parser.parse_args()
    parts = QUICK_PARTS if arguments.quick else FULL_PARTS
    lines: list[Line] = []
    has_failed, tested = False, 0
    for environment in arguments.versions:
        try:
            lines.append(_ready(environment))
        except NotToBeHad as error:
            print(f"{environment.title} is not tested: {error}", file=sys.stderr, flush=True)
            has_failed |= bool(os.environ.get("CI")) and _has_interpreter(environment)
            continue
        for line, passed in _test(environment, parts):
            lines.append(line)
            has_failed |= not passed
            if has_failed and os.environ.get("CI"):
                break  # At once: what calls this has a limit, at which a failure would be forgotten.
        tested += 1
    for line in lines:
        print(f"{line.title:28} {line.part:12} {line.elapsed_s:7.1f} s  {line.said}")
    if not tested and not has_failed:
        print("nothing was tested", file=sys.stderr)
    return int(has_failed or not tested)


def _environment(text: str) -> Environment:
    torch, _, python = text.partition("/")
    if torch not in RELEASES:
        raise argparse.ArgumentTypeError(f'torch "{torch}" is not tested; it may be {", ".join(RELEASES)}')
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


def _test(environment: Environment, parts: Parts) -> Iterator[tuple[Line, bool]]:
    for part, tests in parts.items():
        started_s = time.monotonic()
        print(f"{environment.title}: {part}", flush=True)
        command = [str(environment.executable), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        ended = subprocess.Popen(
            [*command, "-p", "tests.torch_versions.chosen", "-m", "not slow", *tests],
            cwd=ROOT,
            # The packages were installed without bytecode, and each of many processes would compile them anew.
            env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            stdout=subprocess.PIPE,
            text=True,
        )
        last = ""
        assert ended.stdout is not None
        for text in ended.stdout:
            print(text, end="", flush=True)
            last = text.strip() or last
        code = ended.wait()
        said = last.strip("= ") if code == 0 else f"FAILED: {last.strip('= ')}"
        elapsed_s = time.monotonic() - started_s
        yield Line(title=environment.title, part=part, said=said, elapsed_s=elapsed_s), code == 0


if __name__ == "__main__":
    sys.exit(main())
