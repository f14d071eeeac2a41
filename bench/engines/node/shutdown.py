"""Ending the ranks of a trial, and waiting until the GPUs they used are free for the next trial."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Protocol

LOOK_S = 0.1
"""How often the last NVML answer is checked; the node's collectors query NVML once a beat."""


class EndableRank(Protocol):
    """What ending a rank needs from it; see `RankProcess`."""

    @property
    def sentinel(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def pid(self) -> int: ...
    def look(self) -> bool: ...
    def ask_for_stacks(self) -> None: ...
    def abort(self) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class GpuProcesses(Protocol):
    """Returns the processes that compute on the node's GPUs; see `GpuCollector`."""

    def processes(self) -> Mapping[int, object]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long each stage of ending ranks may take, in seconds.

    stacks_s: to write stacks and flight records. aborted_s: to abort communicators and end; 0 skips this stage.
    terminated_s: to end after SIGTERM. killed_s: to disappear after SIGKILL, for all ranks together. freed_s: then,
    until the driver no longer lists them.
    """

    stacks_s: float
    aborted_s: float
    terminated_s: float
    killed_s: float
    freed_s: float


ON_CPU = Patience(stacks_s=0.5, aborted_s=0.0, terminated_s=0.5, killed_s=5.0, freed_s=0.0)

ON_CUDA = Patience(stacks_s=2.0, aborted_s=3.0, terminated_s=0.5, killed_s=30.0, freed_s=10.0)
"""A process that is killed with a full GPU stays until the driver has stopped its kernels and unmapped its memory:
seconds for 100 GB, and more if memory is also pinned on the host. Writing its flight record queries a busy device."""


def collect_stacks(
    ranks: Sequence[EndableRank], patience: Patience, *, clock: Callable[[], float] = time.monotonic
) -> None:
    """Make hung ranks write their stacks and flight records, which may end a rank."""
    hung = [rank for rank in ranks if rank.look()]
    for rank in hung:
        rank.ask_for_stacks()
    _wait_until_gone(hung, patience.stacks_s, clock)


def end(
    ranks: Sequence[EndableRank], patience: Patience, *, clock: Callable[[], float] = time.monotonic
) -> tuple[str, ...]:
    """Ask the remaining ranks to end, then kill the rest, all at once; return a note for each rank that remains.

    On CUDA, communicators are aborted first: otherwise an NCCL kernel that waits for a peer would still be running when
    its process is killed.
    """
    if patience.aborted_s:
        for rank in ranks:
            if rank.look():
                rank.abort()
        _wait_until_gone(ranks, patience.aborted_s, clock)
    for rank in ranks:
        if rank.look():
            rank.terminate()
    remaining = _wait_until_gone(ranks, patience.terminated_s, clock)
    for rank in remaining:
        rank.kill()
    return tuple(
        f"rank {rank.rank} still existed {patience.killed_s:g} s after it was killed; the next trial cannot use what it"
        " holds"
        for rank in _wait_until_gone(remaining, patience.killed_s, clock)
    )


def wait_until_freed(
    ranks: Sequence[EndableRank],
    gpus: GpuProcesses,
    patience: Patience,
    *,
    is_named: bool,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[str, ...]:
    """Wait until the driver lists none of these ranks as computing; return a note for each rank that it still lists.

    gpus: the last answer of the node's collector. is_named: whether the driver uses the PIDs of this process's
    namespace; in a container with its own PIDs it does not, and whether ranks are listed is unknown.
    """
    if not patience.freed_s:
        return ()
    if not is_named:
        return (
            "whether the GPUs' memory is free again is unknown: the driver does not name this container's processes;"
            " the next trial may find less memory",
        )
    deadline_s = clock() + patience.freed_s
    while listed := [rank for rank in ranks if rank.pid in gpus.processes()]:
        if clock() >= deadline_s:
            return tuple(
                f"the driver still listed rank {rank.rank} as computing {patience.freed_s:g} s after its end; the next"
                " trial may find less memory"
                for rank in listed
            )
        sleep(LOOK_S)
    return ()


def _wait_until_gone(ranks: Sequence[EndableRank], patience_s: float, clock: Callable[[], float]) -> list[EndableRank]:
    """Return the ranks that still exist after this many seconds."""
    remaining, deadline_s = [rank for rank in ranks if rank.look()], clock() + patience_s
    while remaining and (left_s := deadline_s - clock()) > 0:
        wait([rank.sentinel for rank in remaining], left_s)
        remaining = [rank for rank in remaining if rank.look()]
    return remaining
