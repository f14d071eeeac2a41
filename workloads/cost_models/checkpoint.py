"""Bytes of a checkpoint on disk, over all ranks: equal copies are written once. Free of torch."""

from __future__ import annotations

from workloads.cost_models.memory import FULL_BYTES
from workloads.spec import Setup

MOMENTS = 2
"""AdamW's states of a weight."""


def checkpoint_bytes(setup: Setup) -> int:
    """Return the bytes of all tensors in a checkpoint: weights, AdamW's two moments, and copies that an update reads.

    DeepSpeed's ZeRO (stages 1 to 3) updates a copy of the weights, which is saved also. The workers of an asynchronous
    parameter server hold weights of different age, each saved. torch's format adds less than 2 KB for each part of a
    tensor.
    """
    copies = 1 + MOMENTS
    if setup.strategy == "deepspeed" and int(setup.options["stage"]) > 0:
        copies += 1
    if setup.strategy == "parameter_server" and setup.options["mode"] == "asynchronous":
        copies += setup.ranks - int(setup.options["servers"])
    return copies * FULL_BYTES * setup.shape.parameters()
