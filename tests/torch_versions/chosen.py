"""A plugin of pytest that leaves, of the many cases of parity, those which meet what differs between releases of torch.

These are each strategy's defaults in fp32, and options that lead through parts of torch of their own. A case in bf16 or
fp16, or one with another number of microbatches, takes the same way through torch as the default.
"""

from __future__ import annotations

import pytest

PARITY = "test_losses_and_gradients_are_those_of_single"
OWN_WAYS = (
    "static_graph=",
    "find_unused_parameters=",
    "compress=powersgd",
    "checkpoint=selective",
    "offload=",
    "stage=0",
    "stage=3",
    "sequence_parallel=",
    "loss_parallel=",
    "variant=zbv",
    "schedule=",
    "data_axis=fsdp",
)
SCALED = ("ddp fp16", "fsdp fp16", "tensor_parallel fp16", "gpipe fp16")
"""Gradients that are whole, sharded, DTensors, or of one stage, each with a scaler of its own."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the cases out that are not chosen."""
    left_out = [item for item in items if item.name.startswith(f"{PARITY}[") and not _is_chosen(item.name)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _is_chosen(name: str) -> bool:
    case = name.partition("[")[2].removesuffix("]")
    if case.startswith(SCALED):
        return True
    is_default = " fp32 " in case and "clip=" not in case
    return is_default or (any(way in case for way in OWN_WAYS) and "microbatches=" not in case)
