"""What a runner and an agent, and an agent and its ranks, say to each other: typed JSON, one message a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from bench.case import NO_LOOKS, Case, Looks
from bench.machine.machine import Machine
from bench.rank.fault_injection import Fault

DUMP = b"dump"
"""What the supervisor sends a rank whose flight record it wants."""
ABORT = b"abort"
"""What it sends one that it ends, which shall take its communicators down before it goes."""


class RankOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's part in one trial.

    folder: where it writes rank<k>.jsonl and rank<k>.err.
    store_host, store_port, prefix: the key-value store that the ranks of this trial meet in.
    store_timeout_s: how long ranks wait for each other in the store; shorter than the trial's limit.
    collective_timeout_s: after which a collective gives up: on gloo before the trial's limit, so that a rank can say
    so; on NCCL after it, for there a watchdog ends the process without its stacks and its record.
    ceiling_flops_per_second: of a matmul run like it, by its median, where there is one.
    """

    run: str
    trial: int
    rank: int
    local_rank: int
    case: Case
    folder: str
    store_host: str
    store_port: int
    prefix: str
    store_timeout_s: float
    collective_timeout_s: float
    keep_trace: bool = False
    looks: Looks = NO_LOOKS
    ceiling_flops_per_second: float | None = None
    fault: Fault | None = None


class TrialOrder(msgspec.Struct, frozen=True, kw_only=True, tag="trial"):
    """Runner to agent: measure this case once, with fresh ranks, within the limit.

    keep_trace: beside the Timeline. looks: of its ranks, beside the measured steps.
    ceiling_flops_per_second: see `RankOrder`.
    """

    run: str
    trial: int
    case: Case
    folder: str
    limit_s: float
    keep_trace: bool = False
    looks: Looks = NO_LOOKS
    ceiling_flops_per_second: float | None = None
    fault: Fault | None = None


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Agent to runner: ranks can be forked from now on."""

    machine: Machine


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """Agent to runner: how many steps, warm-up included, the slowest rank has finished."""

    run: str
    trial: int
    steps: int


Outcome = Literal["done", "failed", "timed_out", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a trial did not end well.

    kind: agent is a failure of the node and not of the workload: its agent, its forkserver, or a rank's GPU.
    rank: the rank that failed first by its own doing; None where no rank can be told from the others.
    step: the step it was in. text: what happened to it. last_lines: the end of its rank<k>.err.
    """

    kind: Literal["killed", "error", "left", "hung", "limit", "disk", "interrupted", "agent"]
    rank: int | None
    step: int | None
    text: str
    last_lines: tuple[str, ...] = ()


class TrialEnded(msgspec.Struct, frozen=True, kw_only=True, tag="trial_ended"):
    """Agent to runner: all ranks of the trial are gone."""

    run: str
    trial: int
    outcome: Outcome
    cause: Cause | None = None


class AgentFailed(msgspec.Struct, frozen=True, kw_only=True, tag="agent_failed"):
    """Agent to runner: it cannot go on, and why."""

    text: str


FromAgent = Ready | Progress | TrialEnded | AgentFailed
