"""A real file system of a few hundred kilobytes, in a mount namespace that ends with the command that runs on it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_MOUNT = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=300k,mode=700 none "$0" && exec "$@"']


_QUOTA = [
    *("unshare", "--mount", "sh", "-c"),
    'truncate -s 160M "$0.img" && mkfs.btrfs -q "$0.img" >&2 && mount -o loop "$0.img" "$0" && rm "$0.img" &&'
    ' btrfs quota enable "$0" && btrfs qgroup limit 300k "$0" && exec "$@"',
]
"""tmpfs and ext4 have quotas on few kernels; those of btrfs hold root, too."""


def within_a_quota(folder: Path, *command: str) -> list[str]:
    """The command line that runs the command with a quota of 300 KiB on the folder, on a disk that has room."""
    if shutil.which("mkfs.btrfs") is None:
        pytest.skip("mkfs.btrfs is not installed")
    return _mounted(_QUOTA, folder, *command)


def on_a_small_disk(folder: Path, *command: str) -> list[str]:
    """The command line that runs the command with a small file system at the folder; the test is skipped without it."""
    return _mounted(_MOUNT, folder, *command)


def _mounted(mount: list[str], folder: Path, *command: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    try:
        mounted = subprocess.run([*mount, str(folder), "true"], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if mounted.returncode:
        pytest.skip(f"no right to mount a small file system here: {mounted.stderr.strip()}")
    return [*mount, str(folder), *command]


_FILL = ': > "$0/file"; head -c 1M /dev/zero > "$0/filler" 2>&-; mount --bind "$0/file" "$1" && echo full && exec cat'


@contextmanager
def on_a_full_disk(path: Path) -> Iterator[Path]:
    """Let an empty file at the path lie on a full disk; give the path by which it is seen so. Needs the same rights."""
    path.touch()
    disk = path.with_name("disk")
    command = on_a_small_disk(disk, "sh", "-c", _FILL, str(disk), str(path))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as mounting:  # Ends with its input.
        assert mounting.stdout is not None
        assert mounting.stdout.readline() == b"full\n"
        yield Path(f"/proc/{mounting.pid}/root{path}")
