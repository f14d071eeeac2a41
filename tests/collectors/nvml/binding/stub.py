"""A real shared library of NVML, built with cc, that programs load through pynvml: what it answers, the caller says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml.c")


def build(folder: Path) -> Path:
    """Build the library into the folder, and return the folder; skips the test where no compiler is."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no cc, with which the stub of NVML is built (tests/support/install_servers.sh)")
    target = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-O0", "-o", target, SOURCE], check=True, timeout=120)
    return folder


def run(library: Path, *words: str, **answers: str | bytes) -> subprocess.CompletedProcess[str]:
    """Run Python with these words, which finds the library; answers: by NVML_... as nvml.c has them."""
    environment: dict[bytes, bytes] = {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
    environment |= {os.fsencode(f"NVML_{name}"): os.fsencode(value) for name, value in answers.items()}
    environment[b"LD_LIBRARY_PATH"] = os.fsencode(library)
    return subprocess.run(
        [sys.executable, "-P", *words], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
