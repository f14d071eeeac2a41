"""What nccl-tests and we call the same things."""

from __future__ import annotations

from collections.abc import Mapping

from workloads.cards.card import Precision
from workloads.laws.terms import Collective

COLLECTIVES: Mapping[str, Collective] = {
    "all_gather": "all_gather",
    "all_reduce": "all_reduce",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "gather": "gather",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "scatter": "scatter",
    "sendrecv": "send",
}
"""Our collective, by nccl-tests' program without its `_perf`."""

DTYPES: Mapping[str, Precision] = {"float": "fp32", "half": "fp16", "bfloat16": "bf16"}
"""Our precision, by nccl-tests' type. Its other types are none of ours and keep their name."""

ALGORITHM = "--algorithm="
"""Begins the argument by which a file of ours names its algorithm; nccl-tests has none like it."""
