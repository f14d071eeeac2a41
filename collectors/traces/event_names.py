"""Rules on event names: which events communicate, and which collective a name means.

Names are the last resort, since they change and mislead: an event's own arguments, and the host's operator around its
launch, come first (`collectors.traces.reading.event_kinds`, `collectors.traces.reading.collective_args`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

STEP = "observatory step"
"""The observatory's own annotation around each step that it traces."""

STEPS = re.compile(r"observatory step$|ProfilerStep\*?#\d+$")
"""Annotations around a step: the observatory's, and the annotation of torch's profiler at each call of step()."""

DATA_LOADING = re.compile(r"^enumerate\(DataLoader\)")
"""The host span in which the training loop waits for its next batch, as torch names it."""

OTHER = "other"
"""The collective of a communication event whose name matches no rule."""

GLOO = "gloo:"
"""Prefix of gloo's events, which are on its own threads or, for send and receive, on the caller's."""

ANNOTATION = re.compile(r"^(?:nccl|gloo|mpi|ucc|xccl|hccl):")
"""The annotation of torch's process groups around a collective, which begins with the backend's name."""

GRAPH_LAUNCH = "GraphLaunch"
"""Part of the name of a graph's launch, in CUDA and HIP."""

RECORD = "record_param_comms"
"""The operator whose arguments describe a collective of torch's process groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Device events that communicate. pattern: matches anywhere in the name. since: versions that use the name."""

    pattern: str
    library: str
    since: str


RULES: tuple[Rule, ...] = (
    Rule(pattern=r"^(?:void )?nccl[A-Z]\w+Kernel_", library="NCCL", since="2.4, up to 2.7"),
    Rule(pattern=r"^(?:void )?ncclKernel_", library="NCCL", since="2.8, up to 2.18"),
    Rule(pattern=r"^(?:void )?ncclDevKernel(?:Debug)?_", library="NCCL, and RCCL of ROCm", since="2.19"),
    Rule(pattern=r"^ncclSymDevKernel_", library="NCCL, symmetric memory", since="2.27"),
    Rule(pattern=r"^ncclSymkDevKernel_", library="NCCL, symmetric memory", since="2.28"),
    Rule(pattern=r"^(?:void )?rccl", library="RCCL", since="its first release"),
    Rule(pattern=r"^mscclKernel_", library="RCCL, MSCCL", since="2.17"),
    Rule(pattern=r"mscclpp", library="MSCCL++", since="its first release"),
    Rule(pattern=r"^hccl|^Hccl|^hcom_", library="HCCL, of Habana and of Ascend", since="their first releases"),
    Rule(pattern=r"cross_device_reduce", library="vLLM, custom all-reduce", since="0.3"),
    Rule(pattern=r"quickreduce::", library="vLLM, quick all-reduce", since="0.9.2"),
    Rule(pattern=r"nvshmem", library="NVSHMEM", since="its first release"),
    # The kernels of `layout` only count tokens.
    Rule(pattern=r"^(?:void )?deep_ep::(?!layout::)", library="DeepEP", since="its first release"),
    Rule(
        pattern=r"^(?:void )?dpsk::ep::(?!layout::)", library="DeepSeek's expert parallelism", since="its first release"
    ),
    Rule(pattern=r"\bmori::|\bEp(?:Dispatch|Combine)\w*Kernel", library="MORI of ROCm", since="its first release"),
    Rule(
        pattern=r"\bpplx::|a2a_(?:dispatch|combine)_(?:send|recv)",
        library="Perplexity's kernels",
        since="first release",
    ),
    Rule(pattern=r"(?i:moe_?a2a|moe_?all_?to_?all)", library="TensorRT-LLM, expert parallelism", since="0.16"),
    Rule(
        pattern=r"(?i:all_?reduce_?fusion_?kernel|(?:one|two)_?shot_?all_?reduce_?(?:fusion_?)?kernel)",
        library="TensorRT-LLM, FlashInfer and aiter, fused all-reduce",
        since="0.12",
    ),
    Rule(
        pattern=r"\baiter::.*(?:all_?gather|all_?reduce|reduce_?scatter|cross_device)",
        library="aiter of ROCm",
        since="its first release",
    ),
    Rule(pattern=r"userbuffers_", library="Transformer Engine, userbuffers", since="0.8"),
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
    (r"reduce_?scatter|userbuffers_.*_rs(?:_|\b)", "reduce_scatter"),
    (r"userbuffers_.*_ag(?:_|\b)", "all_gather"),
    ("userbuffers_push|userbuffers_pull", "send"),
    ("userbuffers_.*_sum_", "all_reduce"),
    ("all_?reduce|cross_device_reduce", "all_reduce"),
    ("all_?gather", "all_gather"),
    ("all_?to_?all", "all_to_all"),
    ("broadcast", "broadcast"),
    ("gather", "gather"),  # After the collectives whose names contain it.
    ("scatter", "scatter"),
    ("reduce", "reduce"),
    (r"(?:deep_ep::|dpsk::ep::|mori::|pplx::|\bEp|a2a_?).*(?:dispatch|combine)", "all_to_all"),
    ("moe_?a2a", "all_to_all"),
    # Both ends of a message or a signal count as send. NCCL's SendRecv may also be any collective made of messages.
    (r"send|recv|(?:put|wait)_signal|P(?:to|2)P", "send"),
)
"""Pattern, collective: the first pattern that matches the name of a kernel, annotation or collective, ignoring case."""

_PATTERNS = tuple((re.compile(pattern, re.IGNORECASE), collective) for pattern, collective in _COLLECTIVES)

# Host events that compute: operators, and regions of torch.compile, whose kernels have no events of their own.
HOST_COMPUTE = re.compile(r"^aten::|^mkldnn|^## Call CompiledFxGraph|^graph_\d+_cpp_fused|^cpp_fused")


def is_communication(name: str) -> bool:
    """Return whether a kernel or copy with this name communicates."""
    return _COMMUNICATES.search(name) is not None


def library_of(name: str) -> str | None:
    """Return the library of the kernel or copy with this name; None if no rule matches."""
    return next((rule.library for rule in RULES if re.search(rule.pattern, name)), None)


COPIES = re.compile(r"^__amd_rocclr_(?:copy|fill)")
"""Kernels with which ROCm's runtime copies and fills memory."""

OF_TORCH = re.compile(r"^(?:void )?at::|checkForNaN")
"""Computing kernels that torch launches inside a collective: copies into buckets, checks for NaN."""

_LOOKS_LIKE_COMMUNICATION = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?(?:to|2)_?all|a2a|send_?recv|[nrh]ccl|cross_device|p2p|rdma"
    r"|shmem|symm_?(?:etric_?)?mem|(?:put|get)_?mem|multimem|nvlink|nvls|inter_?node|intra_?node"
    # Short words must be whole words, but may follow the digits of a mangled name.
    r"|(?<![a-z])(?:ar|ag|rs)_(?:fusion|gemm)|gemm_(?:ar|ag|rs)(?![a-z])|(?<![a-z])ep::|deep_?ep"
    r"|(?:moe|(?<![a-z])ep(?![a-z])|expert).*(?:dispatch|combine)",
    re.IGNORECASE,
)


def looks_like_communication(name: str) -> bool:
    """Return whether a name that matches no rule looks like a kernel that communicates."""
    return OF_TORCH.search(name) is None and _LOOKS_LIKE_COMMUNICATION.search(name) is not None


def collective_of(name: str) -> str:
    """Return the collective for the name of a kernel, annotation or collective; `OTHER` if no rule matches."""
    return next((collective for pattern, collective in _PATTERNS if pattern.search(name)), OTHER)
