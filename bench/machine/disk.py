"""Preflight check of the disk: whether a case's checkpoint fits into the folder of runs, before anything starts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from bench.case import Case
from bench.errors import Misuse
from workloads.cost_models.checkpoint import checkpoint_bytes


def free_bytes(folder: Path) -> int | None:
    """Return the bytes that this user can still write where a folder is or would be made; None where unknown."""
    whole = folder.absolute()
    try:
        return shutil.disk_usage(next(place for place in (whole, *whole.parents) if os.path.lexists(place))).free
    except OSError:
        return None


def check_disk(case: Case, runs: Path, *, free: Callable[[Path], int | None] = free_bytes) -> None:
    """Refuse a case whose checkpoint does not fit on the disk of this machine's folder of runs.

    Only the newest checkpoint of a trial is on disk. Disks of other nodes are not known here: there a save fails in its
    trial, with the same advice.

    Raises:
        Misuse: it does not fit.
    """
    if case.save_every is None:
        return
    needed, left = checkpoint_bytes(case), free(runs)
    if left is not None and needed > left:
        raise Misuse(
            f"{case.title}: a checkpoint has {needed:,} bytes, and the disk of {runs} has {left:,} free; free"
            f" {needed - left:,} bytes, choose another disk with --runs, or leave --save-every out"
        )
