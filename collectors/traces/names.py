"""Which events compute, communicate or copy: the rules, by the event's name and its place.

Communication on a GPU is told by the `Collective name` that NCCL's kernels carry; names come second, since they change.
"""

from __future__ import annotations

import re

STEP = "observatory step"
"""The annotation that surrounds one traced step."""

# Kernels that communicate, each with the library that brought it.
COMMUNICATION_KERNELS = re.compile(
    r"^nccl"  # NCCL: ncclKernel_* up to 2.18, ncclDevKernel_* since 2.19
    r"|^rccl|^mscclKernel"  # RCCL
    r"|cross_device_reduce"  # vLLM and FasterTransformer
    r"|nvshmem|deep_ep::"  # NVSHMEM, DeepEP
    r"|multimem_|one_shot_all_reduce|two_shot_all_reduce",  # torch's symmetric memory
)

GLOO = "gloo:"
"""What gloo's threads, and the caller of its send and receive, call their events."""

_GLOO_NAMES = {"send": "send", "recv": "send"}
"""Those of gloo that are not called as what they do; both ends of a message are a send."""

_KERNEL_NAMES: tuple[tuple[str, str], ...] = (
    ("AllReduce|all_reduce|cross_device_reduce", "all_reduce"),
    ("AllGather|all_gather", "all_gather"),
    ("ReduceScatter|reduce_scatter", "reduce_scatter"),
    ("Broadcast", "broadcast"),
    ("Reduce", "reduce"),  # After those whose names hold it.
    ("SendRecv", "send"),
)
"""In kernels of NCCL and its kin, the first that is found."""

OTHER = "other"

# What computes on the host: operators, and regions that torch.compile made, whose kernels have no events of their own.
HOST_COMPUTE = re.compile(r"^aten::|^mkldnn|^## Call CompiledFxGraph|^graph_\d+_cpp_fused|^cpp_fused")


def is_communication_kernel(name: str, metadata: str) -> bool:
    """Whether a kernel of the device communicates. metadata: kineto's, as JSON text."""
    return '"Collective name"' in metadata or COMMUNICATION_KERNELS.search(name) is not None


def collective_of(name: str) -> str:
    """The collective that an event of communication belongs to, by the event's name; `OTHER` where no rule knows."""
    if name.startswith(GLOO):
        called = name.removeprefix(GLOO)
        return _GLOO_NAMES.get(called, called)
    return next((collective for rule, collective in _KERNEL_NAMES if re.search(rule, name)), OTHER)
