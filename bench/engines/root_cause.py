"""The root cause of a failed trial: which rank broke it, and how.

The cause comes from what the ranks wrote, and from exit codes only if they wrote nothing.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from bench.machine.limits.demand import size_words
from bench.rank.messages import FailureCause, TrialEnded
from collectors.rank.rank_list import listed
from collectors.rank.reached import Reached
from collectors.sample_log import Ended

SENT_CHARACTERS = 8192
"""How many characters of a rank's output, from its end, are sent to the runner."""
LAST_LINES = 12
TIMING = "TORCH_NCCL_ENABLE_TIMING"
"""Without it, torch records no event before a collective on NCCL, so it never knows that a collective has begun."""

LOST_FORKSERVER = 255
"""The exit code that multiprocessing reports for a process whose forkserver is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How a rank of a trial ended.

    result: the rank's own report; None if it left none. exit_code: from the operating system, or minus the number of
    the signal that killed the rank; None if the supervisor ended it.
    ended_ns: Unix time of its end. step: the step it was in.
    reached: its progress in each process group, if its flight record shows it.
    is_moving: it had finished a step shortly before the limit, judged by the pace of its own steps.
    disk: why it could not write its log. output: the end of its output. explained: what known messages mean.
    memory_kills: how many processes of the ranks' control group the kernel killed in the trial because memory ran out;
    None if it does not count them. memory_limit_bytes: the limit of that group, if there is one.
    """

    rank: int
    result: Ended | None
    exit_code: int | None
    ended_ns: int
    step: int
    reached: Mapping[str, Reached] | None = None
    is_moving: bool = False
    disk: str | None = None
    output: str = ""
    explained: tuple[str, ...] = ()
    memory_kills: int | None = None
    memory_limit_bytes: int | None = None

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The last lines that the rank printed, without those of torch's profiler."""
        return tuple([line for line in self.output.splitlines() if not is_chatter(line)][-LAST_LINES:])

    @property
    def is_good(self) -> bool:
        """Whether the rank reported that it finished all its steps."""
        return self.result is not None and self.result.error is None

    @property
    def is_hung(self) -> bool:
        """Whether the rank was still running, without a result, when its time or its peers' time was up."""
        return self.exit_code is None and self.result is None

    @property
    def is_killed(self) -> bool:
        """Whether a signal from elsewhere ended the rank before it could write its result.

        An abort by NCCL's watchdog does not count: it is a consequence of a peer's failure.
        """
        was_signalled = self.exit_code is not None and self.exit_code < 0
        return was_signalled and self.result is None and not self._is_watchdog_abort

    @property
    def has_no_device(self) -> bool:
        """Whether CUDA could not be started in the rank: then the node failed, not the workload."""
        return self.result is not None and self.result.error_type == "NoDevice"

    @property
    def full_disk(self) -> str | None:
        """What the rank could not write, and why; None if the disk was not the reason."""
        if self.disk is not None:
            return f"its log: {self.disk}"
        is_full = self.result is not None and self.result.error_type == "DiskFull"
        return f"a file: {self.result.error}" if self.result is not None and is_full else None

    @property
    def is_echo(self) -> bool:
        """Whether the rank failed because another rank was gone or silent."""
        if self._is_watchdog_abort:
            return True
        if self.result is None or self.result.error is None:
            return False
        return _PEER_ERROR.search(f"{self.result.error_type}: {self.result.error}") is not None

    @property
    def has_timed_out(self) -> bool:
        """Whether the rank gave up waiting on its own, not because a peer had ended."""
        return self.result is not None and self.result.error is not None and "imed out" in self.result.error

    @property
    def _is_watchdog_abort(self) -> bool:
        return self.exit_code == -signal.SIGABRT and _WATCHDOG.search(self.output) is not None


def is_chatter(line: str) -> bool:
    """Whether torch's profiler (kineto) printed the line when it began or ended; it says nothing about the rank."""
    return _CHATTER.match(line) is not None


# "USDT:2026-11-25 21:37:26 194:194 SyncActivityProfilerHandler.cpp:52] profiler_start". Its warnings stay.
_CHATTER = re.compile(r"(?:USDT|STAGE|VERBOSE|INFO):\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \d+:\d+ \w+\.cpp:\d+\]")
# Messages of gloo, NCCL and the store when a peer is gone or silent (torch 2.11 to 2.13).
_PEER_ERROR = re.compile(
    r"PeerLost|Connection closed|Connection reset|Connection refused|[Tt]imed out|[Tt]imeout|Broken pipe"
    r"|DistNetworkError|DistStoreError|recvValue failed|failed to recv"
    r"|remote process exited|remote error|network error|NCCL communicator was aborted"
)
_WATCHDOG = re.compile(r"Watchdog caught collective operation timeout|ProcessGroupNCCL.*(timeout|abort)")


def encoded(ends: Sequence[RankEnd]) -> tuple[msgspec.Raw, ...]:
    """Return how a node's ranks ended, as JSON for `TrialEnded`."""
    shortened = (replace(end, output=end.output[-SENT_CHARACTERS:]) for end in ends)
    return tuple(msgspec.Raw(msgspec.json.encode(end)) for end in shortened)


def joint_cause(parts: Iterable[TrialEnded], folder: str, limit_s: float) -> FailureCause | None:
    """Return the root cause of a trial whose ranks were on several nodes, from the reports of the nodes' agents.

    See `root_cause`. The nodes' clocks decide which of two ranks ended first.
    """
    nodes = [tuple(msgspec.json.decode(end, type=RankEnd) for end in part.ends) for part in parts]
    for ends in nodes:
        if (cause := _lost_forkserver(ends, is_only_node=len(nodes) == 1)) is not None:
            return cause
    return root_cause(tuple(sorted((end for ends in nodes for end in ends), key=lambda end: end.rank)), folder, limit_s)


def root_cause(ends: tuple[RankEnd, ...], folder: str, limit_s: float) -> FailureCause | None:
    """Return the rank that ended the trial by its own fault; None if every rank succeeded.

    In this order: a log that cannot be written or a full disk, an unusable GPU, a rank killed by a signal that the
    supervisor did not send, an error that is not a consequence of a peer's, a rank that left without a result, a rank
    that hangs or gave up waiting, the earliest consequence. Among several ranks of one kind, the first to end; among
    those that hang, the rank that the others wait for.
    """
    if all(end.is_good for end in ends):
        return None
    if (cause := _lost_forkserver(ends, is_only_node=True)) is not None:
        return cause
    by_time = sorted((end for end in ends if not end.is_good), key=lambda end: end.ended_ns)
    for end in by_time:
        if end.full_disk is not None:
            return _cause("disk", end, f"rank {end.rank} could not write {end.full_disk}", folder)
    for end in by_time:
        if end.has_no_device:
            text = f"rank {end.rank} cannot use its GPU: {end.result.error}; see {folder}/rank{end.rank}.err"  # type: ignore[union-attr]
            return FailureCause(kind="agent", rank=end.rank, step=None, text=text, explained=end.explained)
    for end in by_time:
        if end.is_killed:
            return _cause("killed", end, _killed_words(end), folder)
    for end in by_time:
        if end.result is not None and not end.is_echo:
            error = f"{end.result.error_type}: {end.result.error}"
            return _cause("error", end, f"rank {end.rank} failed with {error}", folder)
    for end in by_time:
        if end.result is None and not end.is_hung and not end.is_echo:
            text = f"rank {end.rank} left with exit code {end.exit_code} and no result"
            return _cause("left", end, text, folder)
    # Ranks that hang give up on their own shortly before the trial's limit, if they can.
    hung = [end for end in by_time if end.is_hung] or [end for end in by_time if end.has_timed_out]
    if hung:
        return _hung(hung, ranks=len(ends), folder=folder, limit_s=limit_s)
    first = by_time[0]
    return _cause("error", first, f"rank {first.rank} was the first to lose its peers, and no rank shows why", folder)


def _lost_forkserver(ends: Sequence[RankEnd], *, is_only_node: bool) -> FailureCause | None:
    """Return the cause of a trial that lost the forkserver of a node with these ranks; None if it did not."""
    if not ends or any(end.exit_code != LOST_FORKSERVER or end.result is not None for end in ends):
        return None
    whose = "all ranks" if is_only_node else f"ranks {listed(end.rank for end in ends)}"
    text = f"the forkserver, from which {whose} are forked, is gone"
    if ends[0].memory_kills:
        text += f": its node ran out of memory, and the kernel killed it or a rank (SIGKILL{_limit_words(ends[0])})"
    return FailureCause(kind="agent", rank=None, step=None, text=text)


def _hung(hung: list[RankEnd], *, ranks: int, folder: str, limit_s: float) -> FailureCause:
    """Return the cause of a hang: the rank that others wait for and that waits for none.

    If all ranks still progressed at the limit, the cause is the limit and no rank. Gloo records no messages: if its
    collectives do not decide, the rank in the earliest step is the cause.

    Stages of a pipeline issue different numbers of operations, and with NCCL the host runs ahead of its device. So two
    ranks are compared only in what both do in the same order: collectives of a process group, messages in a direction.
    """
    step = min(end.step for end in hung)
    if len(hung) == ranks and all(end.is_moving for end in hung):
        text = f"the trial was in step {step} when its limit of {limit_s:g} s ended, and no rank hung; increase --limit"
        return FailureCause(kind="limit", rank=None, step=step, text=text)

    if len(hung) == 1:
        return _cause("hung", hung[0], f"rank {hung[0].rank} hung", folder)
    reached = [progress for end in hung for progress in (end.reached or {}).values()]
    has_states = any(progress.completed is not None for progress in reached)
    behind, lack = _behind(hung) if reached else ([], "")
    if not behind and not has_states and any(end.step > step for end in hung):
        behind, lack = [end for end in hung if end.step == step], "it is in an earlier step than others"
    if len(behind) == 1:
        return _cause("hung", behind[0], f"rank {behind[0].rank} hung: {lack}", folder)
    if behind:
        text = f"{_numbers(behind, ranks)} in step {step} while others waited for them; {_stacks(folder)}"
        first = behind[0]
        return FailureCause(
            kind="hung", rank=None, step=step, text=text, last_lines=first.last_lines, explained=first.explained
        )
    text = f"{_numbers(hung, ranks)} in step {step}, all at the same collective; {_stacks(folder)}"
    if has_states and all(progress.started is None for progress in reached):
        text += f"; with {TIMING}=1 torch records which devices have begun it"
    return FailureCause(
        kind="hung", rank=None, step=step, text=text, last_lines=hung[0].last_lines, explained=hung[0].explained
    )


def _behind(hung: list[RankEnd]) -> tuple[list[RankEnd], str]:
    """Return the ranks that others wait for and that wait for none, and what they lack; none if all are equally far.

    Compares what hosts issued first, then what devices began, then what they completed. Example, issued collectives of
    two groups: rank 0 {A: 3}, rank 1 {A: 2, B: 7}, rank 2 {B: 6}. Rank 0 waits for 1, and 1 for 2: rank 2 is behind.
    """
    silent = [end for end in hung if not end.reached]
    if silent:  # They could not write their flight records, or have issued nothing.
        return silent, "it left no record of a collective"
    marks: tuple[tuple[str, Callable[[Reached], int | None]], ...] = (
        ("it has not issued what others have", lambda reached: reached.issued),
        ("its device has not begun what others have", lambda reached: reached.started),
        ("its device has not completed what others have", lambda reached: reached.completed),
    )
    for lack, mark in marks:
        if behind := _least_far(hung, mark):
            return behind, lack
    return [], ""


def _least_far(hung: list[RankEnd], mark: Callable[[Reached], int | None]) -> list[RankEnd]:
    """Return the ranks that lack what another rank has in some sequence, and that are ahead of no rank in any."""
    marks_of_key: dict[str, list[int]] = {}
    marks_of_rank = []
    for end in hung:
        marks = {key: at for key, reached in (end.reached or {}).items() if (at := mark(reached)) is not None}
        marks_of_rank.append(marks)
        for key, at in marks.items():
            marks_of_key.setdefault(key, []).append(at)
    ranges = {key: (min(marks), max(marks)) for key, marks in marks_of_key.items()}
    return [
        end
        for end, marks in zip(hung, marks_of_rank, strict=True)
        if any(at < ranges[key][1] for key, at in marks.items())
        and all(at == ranges[key][0] for key, at in marks.items())
    ]


def _killed_words(end: RankEnd) -> str:
    """Return which signal killed a rank, and whether the kernel sent it because memory ran out."""
    name = signal.Signals(-(end.exit_code or 0)).name
    if name != "SIGKILL" or end.memory_kills == 0:
        return f"rank {end.rank} was killed by {name}"
    if end.memory_kills is None:
        return f"rank {end.rank} was killed by {name} (possibly by the kernel's out-of-memory killer)"
    return f"rank {end.rank} ran out of memory and was killed by the kernel ({name}{_limit_words(end)})"


def _limit_words(end: RankEnd) -> str:
    """Return how much memory the rank's control group may use, as the end of a list; "" without a limit."""
    return "" if end.memory_limit_bytes is None else f"; its control group may use {size_words(end.memory_limit_bytes)}"


def _numbers(ends: list[RankEnd], ranks: int) -> str:
    return "all ranks hung" if len(ends) == ranks else f"ranks {listed(end.rank for end in ends)} hung"


def _stacks(folder: str) -> str:
    return f"their stacks are in {folder}/rank*.err"


def _cause(kind: str, end: RankEnd, text: str, folder: str) -> FailureCause:
    where = f"{text} in step {end.step}; its last lines are in {folder}/rank{end.rank}.err"
    return FailureCause(
        kind=kind,  # type: ignore[arg-type]
        rank=end.rank,
        step=end.step,
        text=where,
        last_lines=end.last_lines,
        explained=end.explained,
    )
