"""A plugin of pytest that selects the tests that depend on the release of torch.

Slow tests are left out, except those of `WITH_SLOW`. The selected cases of parity are each strategy's defaults in fp32,
and options that use parts of torch of their own. A case with another number of microbatches takes the same path through
torch as the default.
"""

from __future__ import annotations

import pytest

WITH_SLOW = (
    "tests/bench/engines/test_traced_trial.py",
    "tests/collectors/rank/test_profiler.py",
    "tests/workloads/pipeline_parallel/test_pipelines.py",
    "tests/workloads/spec/test_states.py",
    "tests/workloads/tensor_parallel/test_tensor_parallel_parts.py",
)
"""Files whose slow tests also use parts of torch that differ between releases."""
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that are not selected."""
    left_out = [item for item in items if _is_too_slow(item) or not _is_chosen(item.name)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _is_too_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None and not item.nodeid.startswith(WITH_SLOW)


def _is_chosen(name: str) -> bool:
    if not name.startswith(f"{PARITY}["):
        return True
    case = name.partition("[")[2].removesuffix("]")
    is_default = " fp32 " in case and "clip=" not in case
    return is_default or (any(way in case for way in OWN_WAYS) and "microbatches=" not in case)
