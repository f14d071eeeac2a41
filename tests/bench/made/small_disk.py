"""A real file system of a few hundred kilobytes, in a mount namespace that ends with the command that runs on it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

_MOUNT = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=300k none "$0" && exec "$@"']


def on_a_small_disk(folder: Path, *command: str) -> list[str]:
    """The command line that runs the command with a small file system at the folder; the test is skipped without it."""
    folder.mkdir(exist_ok=True)
    try:
        mounted = subprocess.run([*_MOUNT, str(folder), "true"], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if mounted.returncode:
        pytest.skip(f"no right to mount a small file system here: {mounted.stderr.strip()}")
    return [*_MOUNT, str(folder), *command]
