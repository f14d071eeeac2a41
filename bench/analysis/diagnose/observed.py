"""The data of a diagnosis: the observed run, the findings, and the diagnosis itself.

`bench.analysis.diagnose.observing` reads a run's folder and the history into an `Observed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from bench.case import Case
from bench.results.efficiency import ScalingEfficiency
from bench.results.estimate import Estimate
from workloads.cost_models.interconnect import Interconnect

CostKind = Literal[
    "compute", "exposed_communication", "bubble", "imbalance", "straggler", "host", "memory", "input", "unknown"
]
"""compute: the arithmetic itself. exposed_communication: transfers that no computation hides. bubble: of a pipeline's
schedule. imbalance: ranks or stages with unequal work. straggler: a rank that holds all others up. host: devices that
idle while their host is busy, or ranks that share cores. memory: the cost of too little memory. input: waiting for
batches. unknown: the evidence names none of these."""

KINDS: tuple[CostKind, ...] = get_args(CostKind)


# What was observed


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """A node's load during the run, from its samples. None: the node did not record it.

    busy_ratio: share of the CPUs' time in which they did not idle.
    load_tasks: median number of tasks that ran or waited to run.
    cpu_pressure_ratio, memory_pressure_ratio: share of the time in which some task waited for a CPU, or for memory.
    swapped_bytes: moved in from swap space and out to it.
    held_ratios: by GPU, the share of the time in which its clocks were throttled for the main reason, and that reason.
    """

    host: str
    busy_ratio: float | None = None
    load_tasks: float | None = None
    cpu_pressure_ratio: float | None = None
    memory_pressure_ratio: float | None = None
    swapped_bytes: float | None = None
    held_ratios: Mapping[str, tuple[float, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorTrouble:
    """Counts of a caching allocator over a run. rank: the one with the highest counts.

    retries: allocations that succeeded only after unused memory was returned to the device, which waits for it.
    """

    rank: int
    retries: int
    out_of_memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A training run, and the facts about its machine.

    cause: why it failed, and the last lines of the blamed rank; empty if it succeeded.
    interconnect: the links by level that probes measured between ranks on this hardware, or why none is known.
    pair_bandwidths: bytes per second of each pair of ranks that a probe measured, by name, for example "0-1".
    device_bytes: memory of one GPU, or of a node's host for ranks on the CPU; None if unknown.
    cores: logical CPUs that the ranks of a node may use; None if unknown.
    rank_hosts: the host of each rank; empty if there is only one host, or if unknown.
    missing: what could not be observed, each with the way to observe it.
    """

    run: str
    case: Case
    outcome: str
    trials_done: int
    estimates: Sequence[Estimate]
    notes: Sequence[str] = ()
    scaling: Sequence[ScalingEfficiency] = ()
    cause: Sequence[str] = ()
    interconnect: Interconnect | str = "the link was not looked up"
    pair_bandwidths: Mapping[str, float] = field(default_factory=dict)
    device_bytes: int | None = None
    cores: int | None = None
    rank_hosts: Mapping[int, str] = field(default_factory=dict)
    nodes: Sequence[NodeLoad] = ()
    allocator: AllocatorTrouble | None = None
    missing: Sequence[str] = ()

    @property
    def crowding(self) -> float | None:
        """CPU threads of a node's ranks per available core; None if unknown."""
        if self.cores is None:
            return None
        return self.case.ranks / self.case.nodes * self.case.threads / self.cores


# Findings


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShare:
    """A share of the step: the median over trials, with a 95 % interval if there is one.

    trials: the value of each trial, in order.
    """

    value: float
    low: float | None
    high: float | None
    trials: tuple[float, ...]

    @property
    def is_unsure(self) -> bool:
        """Whether its interval is wider than the share itself."""
        return self.low is not None and self.high is not None and self.high - self.low > self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Something to try. words: its description.

    settings: options of the run's strategy, or `precision`, with the value to set; empty if the remedy is not an
        option.
    expected: the predicted share of the finding with these settings; None if no model predicts it.
    """

    words: str
    settings: Mapping[str, str] = field(default_factory=dict)
    expected: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostFinding:
    """A cost that takes time of the step.

    share: None if unknown; `evidence` then says what is known.
    expected: the share that the model predicts; None without a model or its inputs, see `why_not_expected`.
    evidence: figures with their units, one per line.
    doubt: why the finding is uncertain, and what would settle it; None if the evidence is clear.
    subject: what is unequal in an imbalance; None for other kinds.
    """

    kind: CostKind
    share: StepShare | None
    expected: float | None = None
    why_not_expected: str | None = None
    evidence: tuple[str, ...] = ()
    levers: tuple[Remedy, ...] = ()
    doubt: str | None = None
    subject: Literal["stages", "ranks"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The limit of a run. See docs/guides/diagnosis.md for the rule.

    limit: the finding that limits the run, or `unknown`. is_sure: whether the evidence excludes other limits.
    reason: why it is the limit; if that is not sure, what else it may be and what would settle it.
    findings: the limit first, then by share of the step.
    root_cause: why the run failed, and the last lines of the blamed rank; empty if it succeeded.
    missing: what the diagnosis lacks, and how to obtain it.
    facts: lines on the step and its speed-up.
    command: the next command to run.
    """

    run: str
    title: str
    outcome: str
    limit: CostFinding
    is_sure: bool
    reason: str
    findings: tuple[CostFinding, ...]
    root_cause: tuple[str, ...]
    missing: tuple[str, ...]
    facts: tuple[str, ...]
    command: str
