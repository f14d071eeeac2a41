"""Which events communicate, and which collective they belong to: the rules, by the event's name.

Names come last, since they change and mislead: what an event, or the host where it was launched, says of itself is in
`collectives_said`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

STEP = "observatory step"
"""The annotation that surrounds one traced step of ours."""

STEPS = re.compile(r"observatory step$|ProfilerStep\*?#\d+$")
"""The annotations that surround a step; the second is what torch's profiler makes of a call of its step()."""

DATA_LOADING = re.compile(r"^enumerate\(DataLoader\)")
"""What torch calls the host's span in which the training loop waits for its next batch."""

OTHER = "other"
"""The collective of an event that communicates, where no rule knows it."""

GLOO = "gloo:"
"""What gloo's threads, and the caller of its send and receive, call their events."""

ANNOTATION = re.compile(r"^(?:nccl|gloo|mpi|ucc|xccl|hccl):")
"""What torch's process groups call the annotation around a collective begins with the backend's name."""

RECORD = "record_param_comms"
"""The operator in which torch's process groups say all of a collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Events of the device that communicate. pattern: found anywhere in the name. since: what brought these names."""

    pattern: str
    library: str
    since: str


RULES: tuple[Rule, ...] = (
    Rule(pattern=r"^nccl[A-Z]\w+Kernel_", library="NCCL", since="2.4, up to 2.7"),
    Rule(pattern=r"^ncclKernel_", library="NCCL", since="2.8, up to 2.18"),
    Rule(pattern=r"^ncclDevKernel_", library="NCCL, and RCCL of ROCm", since="2.19"),
    Rule(pattern=r"^ncclSymDevKernel_", library="NCCL, symmetric memory", since="2.27"),
    Rule(pattern=r"^ncclSymkDevKernel_", library="NCCL, symmetric memory", since="2.28"),
    Rule(pattern=r"^rccl", library="RCCL", since="its first release"),
    Rule(pattern=r"^mscclKernel_", library="RCCL, MSCCL", since="2.17"),
    Rule(pattern=r"mscclpp", library="MSCCL++", since="its first release"),
    Rule(pattern=r"^hccl|^Hccl|^hcom_", library="HCCL, of Habana and of Ascend", since="their first releases"),
    Rule(pattern=r"cross_device_reduce", library="vLLM, custom all-reduce", since="0.3"),
    Rule(pattern=r"quickreduce::", library="vLLM, quick all-reduce", since="0.9.2"),
    Rule(pattern=r"nvshmem", library="NVSHMEM", since="its first release"),
    # What its layout does is to count tokens.
    Rule(pattern=r"^(?:void )?deep_ep::(?!layout::)", library="DeepEP", since="its first release"),
    Rule(pattern=r"(?:oneShot|twoShot|hybridCubeMesh)AllReduceKernel", library="torch, IntraNodeComm", since="2.3"),
    Rule(
        pattern=r"c10d::symmetric_memory::.*\b(?:barrier|(?:put|wait)_signal)_kernel",
        library="torch, symmetric memory",
        since="2.5",
    ),
    Rule(pattern=r"multimem_\w+_kernel", library="torch, symmetric memory", since="2.5"),
    Rule(pattern=r"(?:one|two)_shot_all_reduce", library="torch, symmetric memory", since="2.6"),
    Rule(
        pattern=r"^Memcpy P(?:to|2)P", library="CUDA's copy engines, to a peer's memory", since="kineto's first release"
    ),
)

_COMMUNICATES = re.compile("|".join(rule.pattern for rule in RULES))

_COLLECTIVES: tuple[tuple[str, str], ...] = (
    ("barrier", "barrier"),
    ("reduce_?scatter", "reduce_scatter"),
    ("all_?reduce|cross_device_reduce", "all_reduce"),
    ("all_?gather", "all_gather"),
    ("all_?to_?all", "all_to_all"),
    ("broadcast", "broadcast"),
    ("gather", "gather"),  # After those whose names hold it.
    ("scatter", "scatter"),
    ("reduce", "reduce"),
    ("deep_ep::.*(?:dispatch|combine)", "all_to_all"),
    # Both ends of a message are a send, and so are those of a signal; NCCL's SendRecv may be anything that is made of
    # messages.
    (r"send|recv|(?:put|wait)_signal|P(?:to|2)P", "send"),
)
"""In names of kernels, annotations and collectives, without regard to capitals: the first that is found."""

_PATTERNS = tuple((re.compile(pattern, re.IGNORECASE), collective) for pattern, collective in _COLLECTIVES)

# What computes on the host: operators, and regions that torch.compile made, whose kernels have no events of their own.
HOST_COMPUTE = re.compile(r"^aten::|^mkldnn|^## Call CompiledFxGraph|^graph_\d+_cpp_fused|^cpp_fused")


def is_communication(name: str) -> bool:
    """Whether a kernel or a copy of the device communicates, as far as its name tells."""
    return _COMMUNICATES.search(name) is not None


def collective_of(name: str) -> str:
    """The collective that a name of a kernel, an annotation or a collective speaks of; `OTHER` where none is known."""
    return next((collective for pattern, collective in _PATTERNS if pattern.search(name)), OTHER)
