"""Messages between runner and agent, and orders from agent to ranks: typed JSON.

After a change of a message between runner and agent, raise `bench.engines.wire.frames.PROTOCOL`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from bench.case import NO_INSTRUMENTATION, Case, InstrumentationOptions
from bench.machine.machine import Machine
from bench.machine.node_now import NodeNow
from bench.rank.fault_injection import Fault
from bench.rank.gpu_of_rank import RankGpu

DUMP = b"dump"
"""Sent by the supervisor to a rank to make it write its flight record."""
ABORT = b"abort"
"""Sent by the supervisor to a rank to make it abort its communicators and end."""
GROUPS_MADE = "groups made"
"""Key of a trial's store: the number of ranks that no longer need the store."""


RunId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,127}\Z")]
"""The ID of a run, which is also its folder's name; it cannot contain a path."""


class _Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What agent and ranks know about a trial.

    keep_trace: keep the profiler's trace in addition to the Timeline. instrumentation: runs in extra steps.
    ceiling_flops_per_second: the median of a matmul run in the same setting; None if there is no such run.
    """

    run: RunId
    trial: int
    case: Case
    keep_trace: bool = False
    instrumentation: InstrumentationOptions = NO_INSTRUMENTATION
    ceiling_flops_per_second: float | None = None
    fault: Fault | None = None


class Store(msgspec.Struct, frozen=True, kw_only=True):
    """A key-value store in which ranks of several nodes meet for one trial. prefix: the prefix of its keys."""

    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    prefix: str


class RankOrder(_Order, frozen=True, kw_only=True):
    """Agent to rank: one rank's part in one trial.

    gpu: the rank's GPU; None on a CPU, and if NVML shows none.
    folder: where the rank writes rank<k>.jsonl and rank<k>.err.
    store: the key-value store in which the ranks of this trial meet; if all are on this node, the path of a file in a
    folder that nobody else can enter.
    store_timeout_s: how long ranks wait for each other in the store; shorter than the trial's limit.
    collective_timeout_s: when a collective times out: on gloo before the trial's limit, so that the rank can report it;
    on NCCL after the limit, because NCCL's watchdog ends the process without its stacks and its record.
    """

    rank: int
    local_rank: int
    gpu: RankGpu | None = None
    folder: str
    store: str | Store
    store_timeout_s: float
    collective_timeout_s: float


class TrialOrder(_Order, frozen=True, kw_only=True, tag="trial"):
    """Runner to agent: measure this case once, with fresh ranks, within the limit.

    It contains only the run's ID: the agent knows the folder of runs. It carries no code, and no path except a store's.
    node: the number of the agent's node in the run. first_rank, local_ranks: the node runs this many of the case's
    ranks, beginning with first_rank; None for all that follow. store: where the ranks of all nodes meet: a file if the
    nodes are simulated on one machine; None on one node, where the agent chooses a file.
    """

    limit_s: Annotated[float, msgspec.Meta(gt=0)]
    node: Annotated[int, msgspec.Meta(ge=0)] = 0
    first_rank: Annotated[int, msgspec.Meta(ge=0)] = 0
    local_ranks: Annotated[int, msgspec.Meta(ge=1)] | None = None
    store: str | Store | None = None

    @property
    def ranks(self) -> range:
        """The numbers of the node's ranks."""
        end = self.case.ranks if self.local_ranks is None else self.first_rank + self.local_ranks
        return range(self.first_rank, min(end, self.case.ranks))


class EndTrial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="end_trial"):
    """Runner to agent: end this trial as interrupted if it is running, because its part on another node has ended."""

    run: RunId
    trial: int


FILE_NAME = (
    r"\A(node[0-9]{1,6}\.jsonl|trial[0-9]{1,7}/rank[0-9]{1,6}\.timeline\.npz|rank[0-9]{1,6}\.(jsonl|err|evidence\.jsonl"
    r"|nccl\.log|timeline\.npz|trace\.json\.gz|memory\.json\.gz|memory\.pickle))\Z"
)
FileName = Annotated[str, msgspec.Meta(pattern=FILE_NAME)]
"""A file that a rank or a node writes, beneath the folder of its run."""


class SendFiles(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="send_files", omit_defaults=True
):
    """Runner to agent: send what the node's ranks wrote for this run, and release its folder; the case has ended.

    again: logs of which the runner lost a part; they are sent whole.
    """

    run: RunId
    again: tuple[FileName, ...] = ()


class WatchFiles(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="watch_files", omit_defaults=True
):
    """Runner to agent: begin, or stop, sending what is appended to the run's logs, once a second.

    all_ranks: if False, send only the logs of the ranks with the fewest and the most steps; the others follow when the
    case has ended.
    """

    run: RunId
    is_watched: bool
    all_ranks: bool = True


class CheckNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="check_node"):
    """Runner to agent: report the node's state and clock; only while no trial runs."""


class OpenStore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="open_store"):
    """Runner to agent: open a store for the next trial, in which this many ranks meet; only while no trial runs."""

    ranks: Annotated[int, msgspec.Meta(ge=1)]


ToAgent = TrialOrder | EndTrial | SendFiles | WatchFiles | CheckNode | OpenStore


class Ready(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ready"):
    """Agent to runner: ranks can be forked now."""

    machine: Machine


class StoreOpened(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="store_opened"):
    """Agent to runner: the store listens until the ranks have made their groups or the next trial has ended."""

    store: str | Store


class NodeChecked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="node_checked"):
    """Agent to runner: the node's state. asked_ns, answered_ns: its Unix time at the request and at the answer.

    From these and its own two times the runner computes the difference of the clocks, as NTP does.
    """

    now: NodeNow
    asked_ns: int
    answered_ns: int


class TrialProgress(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="progress"):
    """Agent to runner: the number of steps that the slowest rank has finished, warm-up included."""

    run: RunId
    trial: int
    steps: int


TrialOutcome = Literal["done", "failed", "timed_out", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCause:
    """Why a trial failed.

    kind: "agent" is a failure of the node and not of the workload: of its agent, its forkserver, or a rank's GPU.
    rank: the root cause, the rank that failed first and by itself; None if no rank can be singled out.
    step: the step the rank was in. text: what happened to the rank. last_lines: the end of its rank<k>.err.
    explained: what known messages in it mean, one line each (bench/engines/node/known_messages.toml).
    """

    kind: Literal["killed", "error", "left", "hung", "limit", "disk", "interrupted", "agent"]
    rank: int | None
    step: int | None
    text: str
    last_lines: tuple[str, ...] = ()
    explained: tuple[str, ...] = ()


class TrialEnded(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="trial_ended"):
    """Agent to runner: the trial has ended, and all its ranks on this node are gone.

    ends: the `RankEnd` of each rank if other nodes also have ranks, so that the runner can find the cause among all.
    """

    run: RunId
    trial: int
    outcome: TrialOutcome
    cause: FailureCause | None = None
    ends: tuple[msgspec.Raw, ...] = ()


class AgentFailed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="agent_failed"):
    """Agent to runner: the agent cannot continue. text: why."""

    text: str


class AgentNotice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="agent_notice"):
    """Agent to runner: a notice about the node for the user; nothing ends because of it."""

    text: str


class LogTail(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes that were appended to a log. start: as in `FilePiece`. size: their number in `LogTails.data`."""

    name: FileName
    start: Annotated[int, msgspec.Meta(ge=0)]
    size: Annotated[int, msgspec.Meta(ge=1)]


class LogTails(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="log_tails"):
    """Agent to runner: what was appended to a node's logs, concatenated and compressed by zlib.

    No byte of a log is sent twice: `FileSent` follows the last tail.
    """

    run: RunId
    tails: tuple[LogTail, ...]
    data: bytes


class FilePiece(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="file_piece"):
    """Agent to runner: a piece of a file, compressed by zlib.

    start: the offset of its first byte, counted from the file's size when the agent began the run. Pieces come in
    order, and `FileSent` after the last. is_tail: just appended to a watched log; agents up to protocol 5 send it.
    """

    run: RunId
    name: FileName
    start: Annotated[int, msgspec.Meta(ge=0)]
    data: bytes
    is_tail: bool = False


class FileSent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="file_sent"):
    """Agent to runner: all pieces were sent. size, sha256: those of the whole file."""

    run: RunId
    name: FileName
    size: Annotated[int, msgspec.Meta(ge=0)]
    sha256: str


class FilesSent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="files_sent"):
    """Agent to runner: all files of the run were sent. left_out: a line for each file that could not be read."""

    run: RunId
    left_out: tuple[str, ...] = ()


FromAgent = (
    Ready
    | NodeChecked
    | StoreOpened
    | TrialProgress
    | TrialEnded
    | AgentFailed
    | AgentNotice
    | LogTails
    | FilePiece
    | FileSent
    | FilesSent
)
