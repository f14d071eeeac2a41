"""Preflight check of the disk: how large a case's checkpoint is, and whether it fits into the folder of runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from bench.case import Case
from bench.errors import Misuse
from workloads.core.precision_options import is_master_kept
from workloads.cost_models.memory import FULL_BYTES, HALF_BYTES

MOMENTS = 2
"""The moments that AdamW keeps for each weight."""


def checkpoint_bytes(case: Case) -> int:
    """Return the bytes of all tensors in a checkpoint: weights, AdamW's two moments, and copies that an update reads.

    Weights in bf16 have 2 bytes, and their master is also saved. DeepSpeed's ZeRO (stages 1 to 3) updates a copy of the
    weights, which is also saved. The workers of an asynchronous parameter server hold weights of different ages, and
    each worker saves its own. torch's format adds less than 2 KB for each part of a tensor.
    """
    copies = 1 + MOMENTS
    if case.strategy == "deepspeed" and int(case.options["stage"]) > 0:
        copies += 1
    if case.strategy == "parameter_server" and case.options["mode"] == "asynchronous":
        copies += case.ranks - int(case.options["servers"])
    if is_master_kept(case):
        return (HALF_BYTES + (1 + MOMENTS) * FULL_BYTES) * case.shape.parameters()
    return copies * FULL_BYTES * case.shape.parameters()


def free_bytes(folder: Path) -> int | None:
    """Return the bytes that this user can still write where a folder is or would be made; None if unknown."""
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
