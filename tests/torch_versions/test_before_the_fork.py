"""No process that a rank is forked from calls CUDA or CUPTI, whose state does not survive the fork.

Where torch is built with CUDA, libtorch_cpu.so itself is linked with CUDA's runtime and CUPTI: both are mapped in every
process that imports torch. So calls are counted, and only the driver must not be mapped.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import torch

SHIM = Path(__file__).with_name("counted_calls.c")
DRIVERS = ("libcuda.so", "libamdhip64.so")
ROLES = ("runner", "agent", "forkserver")

pytestmark = pytest.mark.skipif(
    torch.version.cuda is None, reason="torch is built without CUDA; `make test-torch` has builds with it"
)


@dataclass(slots=True)
class Seen:
    """What was seen of the processes of a role while they ran.

    libraries: files that were mapped into any of them.
    """

    pids: set[int] = field(default_factory=set)
    libraries: set[str] = field(default_factory=set)


def build_shim(folder: Path) -> Path:
    """Build the library that counts."""
    library = folder / "counted_calls.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", library, SHIM, "-ldl"], check=True)
    return library


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))


def _counting(shim: Path, folder: Path) -> dict[str, str]:
    """The environment in which calls are counted into `folder`."""
    return {
        **os.environ,
        "LD_PRELOAD": str(shim),
        "COUNTED_CALLS": str(folder / "calls"),
        "XDG_DATA_HOME": str(folder),
    }


def counted_calls(folder: Path) -> dict[int, list[str]]:
    """Calls that were counted, by process."""
    counted: dict[int, list[str]] = defaultdict(list)
    calls = folder / "calls"
    for line in calls.read_text().splitlines() if calls.exists() else ():
        pid, name = line.split()
        counted[int(pid)].append(name)
    return counted


@pytest.mark.parametrize(
    "name", ["cudaGetDeviceCount", "cuInit", "hipGetDeviceCount", "hipInit", "cuptiSubscribe", "cuptiActivityEnable"]
)
def test_the_shim_counts_a_call_from_one_library_into_another(name: str, shim: Path, tmp_path: Path) -> None:
    source, caller = tmp_path / "caller.c", tmp_path / "caller.so"
    source.write_text(f"int {name}(void);\nint call(void) {{ return {name}(); }}\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", caller, source], check=True)
    code = f"import ctypes; ctypes.CDLL({str(caller)!r}).call()"
    subprocess.run([sys.executable, "-c", code], env=_counting(shim, tmp_path), check=True)
    (names,) = counted_calls(tmp_path).values()
    assert names == [name]


STARTED = """
import os
from pathlib import Path
from torch.profiler import ProfilerActivity, profile
calls = Path(os.environ["COUNTED_CALLS"])
assert not calls.exists(), f"torch's import called {calls.read_text()}"
with profile(activities=[ProfilerActivity.CPU]):
    pass
"""


def test_the_shim_counts_what_torchs_profiler_calls(shim: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", STARTED]
    subprocess.run(command, env=_counting(shim, tmp_path), check=True)
    (names,) = counted_calls(tmp_path).values()
    assert "cudaGetDeviceCount" in names


def test_runner_agent_and_forkserver_of_a_run_call_neither_cuda_nor_cupti(shim: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "run", "ddp", "--ranks=2", "--device=cpu", "--trials=1", "--steps=3"]
    with (tmp_path / "said").open("w") as said:
        runner = subprocess.Popen([*command, "--port=0"], env=_counting(shim, tmp_path), stdout=said, stderr=said)
        seen = _watch(runner)
    assert runner.returncode == 0, (tmp_path / "said").read_text()
    counted = counted_calls(tmp_path)
    for role in ROLES:
        (pid,) = seen[role].pids
        assert counted.get(pid, []) == [], role
        assert str(shim) in seen[role].libraries, f"calls of the {role} are not counted"
        assert [name for name in seen[role].libraries if Path(name).name.startswith(DRIVERS)] == [], role
    assert "cudaGetDeviceCount" in {name for pid in seen["rank"].pids for name in counted[pid]}


def _watch(runner: subprocess.Popen[bytes]) -> dict[str, Seen]:
    """Look at a run's processes, by their role, until it ends."""
    seen: dict[str, Seen] = defaultdict(Seen)
    while runner.poll() is None:
        try:
            processes = [psutil.Process(runner.pid), *psutil.Process(runner.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            break
        for process in processes:
            try:
                role = _role(process, runner.pid)
                if role is not None:
                    seen[role].pids.add(process.pid)
                    seen[role].libraries |= {part.path for part in process.memory_maps()}
            except psutil.Error:
                continue  # It has just ended.
        time.sleep(0.1)
    runner.wait()
    return seen


def _role(process: psutil.Process, runner: int) -> str | None:
    """What a process is in a run; None for one that no rank comes from.

    A rank, which is forked, has the forkserver's command line and is its child.
    """
    if process.pid == runner:
        return "runner"
    words = " ".join(process.cmdline())
    if "bench.engines.node.agent" in words and process.ppid() == runner:
        return "agent"
    if "multiprocessing.forkserver" not in words:
        return None
    parent = process.parent()
    is_forked = parent is not None and "multiprocessing.forkserver" in " ".join(parent.cmdline())
    return "rank" if is_forked else "forkserver"
