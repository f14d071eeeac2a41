"""What a diagnosis is made from, and what it is made of: an observed run, its findings, the diagnosis of them.

Data only: `bench.analysis.diagnose.observing` reads a run's folder and the history into an `Observed`.
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
schedule. imbalance: ranks or stages with unequal work. straggler: one rank that holds all others up. host: devices that
idle while their host does something else, or ranks that share cores. memory: what is paid for too little of it. input:
waiting for batches. unknown: the evidence names none of these."""

KINDS: tuple[CostKind, ...] = get_args(CostKind)


# What was observed


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """What a node's samples tell of the time of the run. None: the node did not tell.

    busy_ratio: share of the CPUs' time in which they did not idle.
    load_tasks: median number of tasks that ran or waited to run.
    cpu_pressure_ratio, memory_pressure_ratio: share of the time in which some task waited for a CPU, or for memory.
    swapped_bytes: moved in from swap space and out to it.
    held_ratios: by GPU, the share of the time for which the reason that held its clocks back longest did so, and the
        reason.
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
    """What a caching allocator counted over a run. rank: the one that counted most.

    retries: allocations that succeeded only after unused memory was returned to the device, which waits for it.
    """

    rank: int
    retries: int
    out_of_memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A run of training, with what else is known of its machine.

    cause: why it did not end well, and the last lines of the blamed rank; empty where it ended well.
    interconnect: the links by level that probes measured between ranks of this hardware, or why none is known.
    pair_bandwidths: bytes per second of each pair of ranks, by its name such as "0-1", where a probe measured them.
    device_bytes: memory of one GPU, or of a node's host for ranks on the CPU; None where it is not known.
    cores: logical CPUs that the ranks of a node may use; None where they are not known.
    rank_hosts: the host of each rank; empty where there is but one, or it is not known.
    missing: what could not be observed, each with what would tell it.
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
        """CPU threads of a node's ranks per core that these may use; None where that is unknown."""
        if self.cores is None:
            return None
        return self.case.ranks / self.case.nodes * self.case.threads / self.cores


# What is found


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShare:
    """A share of the step: the median over trials, with a 95 % interval where there is one.

    trials: the value of each trial, in order.
    """

    value: float
    low: float | None
    high: float | None
    trials: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Something to try. words: what it is.

    settings: options of the run's strategy, or `precision`, with the value to set; empty where it is no option.
    expected: the share of the step that the law expects of the finding with them; None where no law tells.
    """

    words: str
    settings: Mapping[str, str] = field(default_factory=dict)
    expected: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostFinding:
    """One thing that takes time of the step.

    share: None where it cannot be told, and `evidence` says what is known.
    expected: the share that the law expects; None where there is no law, or it lacks something: `why_not_expected`.
    evidence: figures with their units, one in each line.
    doubt: why the finding may be another, and what would settle it; None where the evidence names it.
    subject: what is unequal, of an imbalance; None of other kinds.
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
    """What limits a run. See docs/guides/diagnosis.md for the rule.

    limit: the finding that limits it, or `unknown`. is_sure: whether the evidence excludes another.
    reason: why it is the limit; where it is not sure, what else it may be and what would settle it.
    findings: the limit first, then by their share of the step.
    root_cause: why the run failed, and the last lines of the blamed rank; empty where it ended well.
    missing: what the diagnosis lacks, and what would tell it.
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
