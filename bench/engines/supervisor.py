"""Runs trials on one node: forks fresh ranks from a warm forkserver, watches them, and says which one failed."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # Public, but in no __all__.

from bench.engines.blame import root_cause
from bench.engines.messages import Cause, Outcome, Progress, RankOrder, TrialEnded, TrialOrder
from bench.engines.rank_process import ENDING_S, RankProcess
from collectors.poller import Poller
from collectors.roster import open_collectors
from collectors.sampler import polling

LOOK_S = 0.5
"""How often the ranks' logs are read while they run; each look costs a read of what is new."""
PEERS_S = 1.5
"""How long the others may take to end by themselves after the first failure (gloo's peers raise within 0.05 s)."""
STACKS_S = ENDING_S / 2
TERMINATE_S = ENDING_S / 2
NODE = 0
"""This engine has one node."""
COLLECTIVE_SHARE = 0.8
"""A collective gives up after this share of the trial's limit, so that a rank can say so before it is ended."""


class Supervisor:
    """Ranks of one node, one trial at a time. Whoever makes it has told the forkserver what to load.

    host: the address at which this node's store listens, and at which its ranks reach it.
    """

    def __init__(self, *, host: str) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._host = host
        self._trials = itertools.count()
        self._poller = Poller(open_collectors())
        listener = socket.create_server((host, 0))  # The store itself would listen to every network of the node.
        self._port = listener.getsockname()[1]
        self._store = TCPStore(
            host, self._port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )

    def warm(self) -> None:
        """Wait until the forkserver has loaded torch, once for all ranks to come."""
        idle = self._context.Process(target=_nothing)
        idle.start()
        idle.join()
        if idle.exitcode != 0:
            raise RuntimeError(f"the forkserver does not start ranks; its first process ended with {idle.exitcode}")

    def close(self) -> None:
        """Give back what the node's collectors took; no trial is run afterwards."""
        self._poller.close()

    def run(self, order: TrialOrder, *, stop: int, progress: Callable[[Progress], None]) -> TrialEnded:
        """Measure the case once with fresh ranks; when this returns, none of them is left.

        stop: a file descriptor that becomes readable when the runner wants the trial ended.
        """
        ranks: list[RankProcess] = []
        prefix = f"trial{next(self._trials)}"  # Never used before: ranks would meet in the keys of those that are gone.
        with self._polling(order):
            try:
                for rank in range(order.case.ranks):
                    ranks.append(RankProcess(self._context, self._rank_order(order, rank, prefix)))
                outcome = self._watch(order, ranks, stop, progress)
                if outcome != "done":
                    _collect_stacks(ranks)
            finally:
                _end(ranks)
        return _ended(order, ranks, outcome)

    def _polling(self, order: TrialOrder) -> AbstractContextManager[None]:
        """The node's collectors are polled meanwhile; what troubles them troubles no rank."""
        return polling(
            self._poller,
            Path(order.folder) / f"node{NODE}.jsonl",
            run=order.run,
            node=NODE,
            trial=order.trial,
            on_problem=partial(print, file=sys.stderr),
        )

    def _rank_order(self, order: TrialOrder, rank: int, prefix: str) -> RankOrder:
        return RankOrder(
            run=order.run,
            trial=order.trial,
            rank=rank,
            local_rank=rank,
            case=order.case,
            folder=order.folder,
            store_host=self._host,
            store_port=self._port,
            prefix=prefix,
            collective_timeout_s=COLLECTIVE_SHARE * order.limit_s,
            keep_trace=order.keep_trace,
            looks=order.looks,
            ceiling_flops_per_second=order.ceiling_flops_per_second,
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
            alive = [rank for rank in ranks if rank.look()]
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
    hung = [rank for rank in ranks if rank.look()]
    for rank in hung:
        rank.ask_for_stacks()
    until = time.monotonic() + STACKS_S
    while any(rank.look() for rank in hung) and time.monotonic() < until:
        wait([rank.sentinel for rank in hung if rank.look()], max(0.0, until - time.monotonic()))


def _end(ranks: Sequence[RankProcess]) -> None:
    """Ask those that are left to end, then end them."""
    for rank in ranks:
        if rank.look():
            rank.terminate()
    until = time.monotonic() + TERMINATE_S
    while (left := [rank for rank in ranks if rank.look()]) and time.monotonic() < until:
        wait([rank.sentinel for rank in left], max(0.0, until - time.monotonic()))
    for rank in left:
        rank.kill()


def _ended(order: TrialOrder, ranks: Sequence[RankProcess], outcome: Outcome) -> TrialEnded:
    ends = tuple(rank.end() for rank in ranks)
    for rank in ranks:  # Flight records serve blame, which has read them by now.
        with suppress(FileNotFoundError):
            (Path(order.folder) / f"rank{rank.order.rank}.flight.json").unlink()
    cause = root_cause(ends, order.folder, order.limit_s)
    if cause is None:  # Whoever was late was done all the same.
        return TrialEnded(run=order.run, trial=order.trial, outcome="done")
    if outcome == "interrupted":
        cause = Cause(kind="interrupted", rank=None, step=None, text="interrupted")
    return TrialEnded(run=order.run, trial=order.trial, outcome=outcome, cause=cause)
