"""How the ranks of a trial are ended, and when what they held is free for the next trial."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Protocol

LOOK_S = 0.1
"""How often NVML's last answer is looked at; the node's collectors ask it once a beat."""


class Rank(Protocol):
    """What is asked of a rank that shall end; see `RankProcess`."""

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
    """Who computes on the node's GPUs; see `GpuCollector`."""

    def processes(self) -> Mapping[int, object]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long ranks are waited for, in seconds.

    stacks_s: until they have written their stacks and their flight records. aborted_s: after they were told to take
    their communicators down and end; 0: they are not told. terminated_s: after they were asked to end.
    killed_s: after they were killed, all together. freed_s: after that, until the driver lists none of them.
    """

    stacks_s: float
    aborted_s: float
    terminated_s: float
    killed_s: float
    freed_s: float


ON_CPU = Patience(stacks_s=0.5, aborted_s=0.0, terminated_s=0.5, killed_s=5.0, freed_s=0.0)

ON_CUDA = Patience(stacks_s=2.0, aborted_s=3.0, terminated_s=0.5, killed_s=30.0, freed_s=10.0)
"""A process that is killed with its GPU full is there until the driver has stopped its kernels and unmapped its memory:
seconds for 100 GB, and more where it is also pinned on the host. Its record is asked of a device that is at work."""


def collect_stacks(ranks: Sequence[Rank], patience: Patience, *, clock: Callable[[], float] = time.monotonic) -> None:
    """Have ranks that hang write where they are; a rank may end of it."""
    hung = [rank for rank in ranks if rank.look()]
    for rank in hung:
        rank.ask_for_stacks()
    _wait_until_gone(hung, patience.stacks_s, clock)


def end(ranks: Sequence[Rank], patience: Patience, *, clock: Callable[[], float] = time.monotonic) -> tuple[str, ...]:
    """Ask those that are left to end, then kill them, all at once; a note of each that is still there after that.

    On CUDA communicators are taken down first: a kernel of NCCL that waits for a peer would else be at work when its
    process is killed.
    """
    if patience.aborted_s:
        for rank in ranks:
            if rank.look():
                rank.abort()
        _wait_until_gone(ranks, patience.aborted_s, clock)
    for rank in ranks:
        if rank.look():
            rank.terminate()
    left = _wait_until_gone(ranks, patience.terminated_s, clock)
    for rank in left:
        rank.kill()
    return tuple(
        f"rank {rank.rank} was still there {patience.killed_s:g} s after it was killed; what it holds is not free for"
        " the next trial"
        for rank in _wait_until_gone(left, patience.killed_s, clock)
    )


def wait_until_freed(
    ranks: Sequence[Rank],
    gpus: GpuProcesses,
    patience: Patience,
    *,
    is_named: bool,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[str, ...]:
    """Wait until the driver lists none of these ranks as computing; a note of each that it still does.

    gpus: as last read by somebody else. is_named: the driver names processes by the numbers that they have here; in a
    container of its own PIDs it does not, and nobody can tell.
    """
    if not patience.freed_s:
        return ()
    if not is_named:
        return (
            "whether the GPUs' memory is free again is not known: the driver does not name this container's processes;"
            " the next trial may find less memory",
        )
    until = clock() + patience.freed_s
    while held := [rank for rank in ranks if rank.pid in gpus.processes()]:
        if clock() >= until:
            return tuple(
                f"the driver lists rank {rank.rank} as computing {patience.freed_s:g} s after its end; the next trial"
                " may find less memory"
                for rank in held
            )
        sleep(LOOK_S)
    return ()


def _wait_until_gone(ranks: Sequence[Rank], patience_s: float, clock: Callable[[], float]) -> list[Rank]:
    """Those that are still there after so many seconds."""
    left, until = list(_there(ranks)), clock() + patience_s
    while left and (rest_s := until - clock()) > 0:
        wait([rank.sentinel for rank in left], rest_s)
        left = list(_there(left))
    return left


def _there(ranks: Sequence[Rank]) -> Iterator[Rank]:
    return (rank for rank in ranks if rank.look())
