"""Programs in a mount namespace of their own, where file systems are mounted over those of this machine."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import pytest


@cache
def _why_not() -> str | None:
    """Return why no namespace can be made here; None if one can."""
    try:
        made = subprocess.run(
            ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if made.returncode == 0 else made.stderr.strip()


def run_with_mounts(mounts: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program after lines of a shell that mount file systems, which end with it; skip where that is not allowed.

    words: those of a Python interpreter.
    """
    if (reason := _why_not()) is not None:
        pytest.skip(f"no mount namespace can be made here: {reason}")
    lines = f'set -e\n{mounts}\nexec "$@"'
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", lines, "sh", sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


SMALL_SHM = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
"""What a container has without --shm-size."""
