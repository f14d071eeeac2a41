"""Runs trials on one node: forks fresh ranks from a warm forkserver, watches them, and says which one failed."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # Public, but in no __all__.

from bench.engines.blame import root_cause
from bench.engines.messages import Cause, Outcome, Progress, RankOrder, TrialEnded, TrialOrder
from bench.engines.rank_process import RankProcess

LOOK_S = 0.5
"""How often the ranks' logs are read while they run; each look costs a read of what is new."""
PEERS_S = 1.5
"""How long the others may take to end by themselves after the first failure (gloo's peers raise within 0.05 s)."""
STACKS_S = 0.5
TERMINATE_S = 0.5
COLLECTIVE_SHARE = 0.8
"""A collective gives up after this share of the trial's limit, so that a rank can say so before it is ended."""


class Supervisor:
    """Ranks of one node, one trial at a time. Whoever makes it has told the forkserver what to load.

    host: the address at which this node's store listens, and at which its ranks reach it.
    """

    def __init__(self, *, host: str) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._host = host
        self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False)

    def warm(self) -> None:
        """Wait until the forkserver has loaded torch, once for all ranks to come."""
        idle = self._context.Process(target=_nothing)
        idle.start()
        idle.join()
        if idle.exitcode != 0:
            raise RuntimeError(f"the forkserver does not start ranks; its first process ended with {idle.exitcode}")

    def run(self, order: TrialOrder, *, stop: int, progress: Callable[[Progress], None]) -> TrialEnded:
        """Measure the case once with fresh ranks; when this returns, none of them is left.

        stop: a file descriptor that becomes readable when the runner wants the trial ended.
        """
        ranks: list[RankProcess] = []
        try:
            for rank in range(order.case.ranks):
                ranks.append(RankProcess(self._context, self._rank_order(order, rank)))
            outcome = self._watch(order, ranks, stop, progress)
            if outcome != "done":
                _collect_stacks(ranks)
        finally:
            _end(ranks)
        return _ended(order, ranks, outcome)

    def _rank_order(self, order: TrialOrder, rank: int) -> RankOrder:
        return RankOrder(
            run=order.run,
            trial=order.trial,
            rank=rank,
            local_rank=rank,
            case=order.case,
            folder=order.folder,
            store_host=self._host,
            store_port=self._store.port,
            prefix=f"{order.run}/{order.trial}",
            collective_timeout_s=COLLECTIVE_SHARE * order.limit_s,
            fault=order.fault,
        )

    def _watch(
        self, order: TrialOrder, ranks: Sequence[RankProcess], stop: int, progress: Callable[[Progress], None]
    ) -> Outcome:
        """Wait until all ranks are gone, one has failed and its peers had their time, or the time is over."""
        deadline = time.monotonic() + order.limit_s
        failing_until = math.inf
        told = -1
        while True:
            alive = [rank for rank in ranks if rank.is_alive]
            failed = any(not rank.has_good_result for rank in ranks if rank not in alive)
            if not alive:
                return "failed" if failed else "done"
            now = time.monotonic()
            if failed and failing_until == math.inf:
                failing_until = now + PEERS_S
            if now >= min(deadline, failing_until):
                return "failed" if failed else "timed_out"
            ready = wait([*(rank.sentinel for rank in alive), stop], min(LOOK_S, deadline - now, failing_until - now))
            if stop in ready:
                return "interrupted"
            steps = min(rank.steps() for rank in ranks)
            if steps != told:
                told = steps
                progress(Progress(run=order.run, trial=order.trial, steps=steps))


def _nothing() -> None:
    """The body of the process that wakes the forkserver."""


def _collect_stacks(ranks: Sequence[RankProcess]) -> None:
    hung = [rank for rank in ranks if rank.is_alive]
    for rank in hung:
        rank.ask_for_stacks()
    until = time.monotonic() + STACKS_S
    while any(rank.is_alive for rank in hung) and time.monotonic() < until:
        wait([rank.sentinel for rank in hung if rank.is_alive], max(0.0, until - time.monotonic()))


def _end(ranks: Sequence[RankProcess]) -> None:
    """Ask those that are left to end, then end them."""
    for rank in ranks:
        if rank.is_alive:
            rank.terminate()
    until = time.monotonic() + TERMINATE_S
    while (left := [rank for rank in ranks if rank.is_alive]) and time.monotonic() < until:
        wait([rank.sentinel for rank in left], max(0.0, until - time.monotonic()))
    for rank in left:
        rank.kill()


def _ended(order: TrialOrder, ranks: Sequence[RankProcess], outcome: Outcome) -> TrialEnded:
    ends = tuple(rank.end() for rank in ranks)
    if outcome == "interrupted":
        cause: Cause | None = Cause(kind="interrupted", rank=None, step=None, text="interrupted")
    else:
        cause = root_cause(ends, order.folder)
    for rank in ranks:  # Flight records serve blame; what they say is in the cause by now.
        if cause is None:
            with suppress(FileNotFoundError):
                (Path(order.folder) / f"rank{rank.order.rank}.flight.json").unlink()
    return TrialEnded(run=order.run, trial=order.trial, outcome=outcome, cause=cause)
