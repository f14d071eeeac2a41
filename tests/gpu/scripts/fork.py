"""Whether a process forked after a profiler ran can use the device, and whether our forkserver has loaded CUDA.

Plain torch on one side, the product's own forkserver on the other; prints both as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from bench.engines.local import LocalEngine
from tests.gpu.scripts.device import device_of_words

LIBRARIES = ("libcuda.so",)
"""CUPTI is mapped wherever torch is loaded: libtorch_cpu is linked with it."""
_CHILD = """
import os, sys, torch
if sys.argv[2] == "profiled":
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        pass
child = os.fork()
if child == 0:
    try:
        torch.zeros(1, device=sys.argv[1]).sum().item()
        os._exit(0)
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0], file=sys.stderr)
        os._exit(1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def main() -> None:
    device = device_of_words().device
    found = {kind: _forked(str(device), kind) for kind in ("profiled", "plain")}
    print(json.dumps({**found, "loaded": _loaded_by_forkserver()}))


def _forked(device: str, kind: str) -> dict[str, object]:
    """How a child fares that is forked from a process of its own. CUDA is left alone in this one."""
    done = subprocess.run([sys.executable, "-c", _CHILD, device, kind], capture_output=True, text=True, check=False)
    return {"lives": done.returncode == 0, "said": done.stderr.strip()[-300:]}


def _loaded_by_forkserver() -> list[str] | None:
    """Those of the libraries in the maps of the process that ranks are forked from; None where none was found."""
    with tempfile.TemporaryDirectory() as folder, LocalEngine(Path(folder)) as engine:
        engine.machine()
        for process in psutil.Process().children(recursive=True):
            if any("multiprocessing.forkserver" in word for word in process.cmdline()):
                text = Path(f"/proc/{process.pid}/maps").read_text()
                return [name for name in LIBRARIES if name in text]
    return None


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
