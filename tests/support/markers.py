"""Which marked tests this machine can run: `gpu` needs one GPU, `gpu2` two and `gpu8` eight."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

GPUS = {"gpu": 1, "gpu2": 2, "gpu8": 8}
"""Number of GPUs that a test with the marker needs."""


def why_skipped(markers: Iterable[str], gpus: int) -> str | None:
    """Return why a test with these markers must be skipped with this many GPUs; None if it can run."""
    needed = max((GPUS[name] for name in markers if name in GPUS), default=0)
    if gpus >= needed:
        return None
    gpu_words = "an NVIDIA GPU" if needed == 1 else f"{needed} NVIDIA GPUs"
    return f"needs {gpu_words}, and torch can use {gpus or 'none'}"


def usable_gpus() -> int:
    """Return the number of GPUs that torch can use; torch asks NVML if it can, so this process may still fork ranks."""
    import torch  # Only tests of GPUs load it.

    backend: Any = torch.backends.cuda
    return int(torch.cuda.device_count()) if backend.is_built() else 0


def why_numbered_otherwise(sched: Path = Path("/proc/1/sched")) -> str | None:
    """Return why the driver may number processes differently from this container; None if both agree.

    sched: file in which the kernel gives the first process's number on the host; for a container this is not 1.
    """
    try:
        first = sched.read_text().partition("\n")[0]
    except OSError as error:
        return f"{sched} does not show how processes are numbered: {error.strerror}"
    return None if "(1," in first else "the driver numbers processes differently from this container"
