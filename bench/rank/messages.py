"""Messages between runner and agent, and orders from agent to ranks: typed JSON, one message a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from bench.case import NO_INSTRUMENTATION, Case, InstrumentationOptions
from bench.machine.machine import Machine
from bench.rank.fault_injection import Fault

DUMP = b"dump"
"""Sent by the supervisor to a rank to make it write its flight record."""
ABORT = b"abort"
"""Sent by the supervisor to a rank to make it abort its communicators and end."""


class _Order(msgspec.Struct, frozen=True, kw_only=True):
    """What agent and ranks are told of a trial.

    folder: where each rank writes rank<k>.jsonl and rank<k>.err. keep_trace: keep the profiler's trace beside the
    Timeline. looks: instrumentation in steps of its own.
    ceiling_flops_per_second: the median of a matmul run in the same setting; None if there is no such run.
    """

    run: str
    trial: int
    case: Case
    folder: str
    keep_trace: bool = False
    looks: InstrumentationOptions = NO_INSTRUMENTATION
    ceiling_flops_per_second: float | None = None
    fault: Fault | None = None


class RankOrder(_Order, frozen=True, kw_only=True):
    """Agent to rank: one rank's part in one trial.

    store_host, store_port, prefix: the key-value store in which the ranks of this trial meet.
    store_timeout_s: how long ranks wait for each other in the store; shorter than the trial's limit.
    collective_timeout_s: when a collective times out: on gloo before the trial's limit, so that the rank can report it;
    on NCCL after it, because NCCL's watchdog ends the process without its stacks and its record.
    """

    rank: int
    local_rank: int
    store_host: str
    store_port: int
    prefix: str
    store_timeout_s: float
    collective_timeout_s: float


class TrialOrder(_Order, frozen=True, kw_only=True, tag="trial"):
    """Runner to agent: measure this case once, with fresh ranks, within the limit."""

    limit_s: float


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Agent to runner: ranks can be forked now."""

    machine: Machine


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """Agent to runner: how many steps the slowest rank has finished, warm-up included."""

    run: str
    trial: int
    steps: int


Outcome = Literal["done", "failed", "timed_out", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a trial did not end well.

    kind: "agent" is a failure of the node and not of the workload: of its agent, its forkserver, or a rank's GPU.
    rank: the root cause, the rank that failed by its own doing; None if it cannot be told from the others.
    step: the step the rank was in. text: what happened to it. last_lines: the end of its rank<k>.err.
    """

    kind: Literal["killed", "error", "left", "hung", "limit", "disk", "interrupted", "agent"]
    rank: int | None
    step: int | None
    text: str
    last_lines: tuple[str, ...] = ()


class TrialEnded(msgspec.Struct, frozen=True, kw_only=True, tag="trial_ended"):
    """Agent to runner: the trial ended, and all its ranks are gone."""

    run: str
    trial: int
    outcome: Outcome
    cause: Cause | None = None


class AgentFailed(msgspec.Struct, frozen=True, kw_only=True, tag="agent_failed"):
    """Agent to runner: the agent cannot go on. text: why."""

    text: str


FromAgent = Ready | Progress | TrialEnded | AgentFailed
