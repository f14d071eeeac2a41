"""Runs trials on one node: forks fresh ranks from a warm forkserver, watches them, and says which one failed."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path

from bench.engines.blame import root_cause
from bench.engines.ending import ON_CPU, ON_CUDA, Patience, collect_stacks, end, wait_until_freed
from bench.engines.messages import Cause, Outcome, Progress, RankOrder, TrialEnded, TrialOrder
from bench.engines.node_store import NodeStore
from bench.engines.rank_process import RankProcess
from bench.machine import Machine
from collectors.nvml.processes import names_all_processes
from collectors.poller import Poller
from collectors.roster import GpuCollector, open_collectors
from collectors.sample_log import LogUnwritable, Note, SampleLog
from collectors.sampler import polling

LOOK_S = 0.5
"""How often the ranks' logs are read while they run; each look costs a read of what is new."""
PEERS_S = 1.5
"""How long the others may take to end by themselves after the first failure (gloo's peers raise within 0.05 s). NCCL's
raise nothing, and are ended by us after it, so that none of them is blamed."""
NODE = 0
"""This engine has one node."""
GIVES_UP_SHARE = 0.8
"""Whoever waits for a peer gives up after this share of the trial's limit, so that it can say so before it is ended."""
NCCL_SHARE = 1.25
"""NCCL's watchdog says nothing that a rank could say: it ends the process, also one that others wait for. So it is not
to decide before the limit, when each rank still tells its stacks and how far its device came."""


class Supervisor:
    """Ranks of one node, one trial at a time. Whoever makes it has told the forkserver what to load.

    host: the address at which this node's store listens, and at which its ranks reach it.
    """

    def __init__(self, *, host: str) -> None:
        """Wait until the forkserver has loaded torch, once for all ranks to come."""
        self._context = multiprocessing.get_context("forkserver")
        self._host = host
        self._trials = itertools.count()
        collectors = open_collectors()
        self._poller = Poller(collectors)
        self._gpus = next((one for one in collectors if isinstance(one, GpuCollector)), None)
        self._store = NodeStore(self._context, host)

    @property
    def machine(self) -> Machine:
        """This node."""
        return self._store.machine

    def close(self) -> None:
        """Give back what the node's collectors took; no trial is run afterwards."""
        self._poller.close()
        self._store.close()

    def run(self, order: TrialOrder, *, stop: int, progress: Callable[[Progress], None]) -> TrialEnded:
        """Measure the case once with fresh ranks; when this returns, none of them is left.

        stop: a file descriptor that becomes readable when the runner wants the trial ended.
        """
        ranks: list[RankProcess] = []
        prefix = f"trial{next(self._trials)}"  # Never used before: ranks would meet in the keys of those that are gone.
        patience = ON_CUDA if order.case.device == "cuda" else ON_CPU
        with self._polling(order):
            try:
                for rank in range(order.case.ranks):
                    ranks.append(RankProcess(self._context, self._rank_order(order, rank, prefix)))
                outcome = self._watch(order, ranks, stop, progress)
                if outcome == "interrupted":
                    patience = ON_CPU  # No trial follows, and the runner waits for us.
                if outcome != "done":
                    collect_stacks(ranks, patience)
            finally:
                notes = end(ranks, patience)
            if outcome != "done":
                notes += self._free_gpus(ranks, patience)
        _note(order, notes)
        return _ended(order, ranks, outcome)

    def _free_gpus(self, ranks: Sequence[RankProcess], patience: Patience) -> tuple[str, ...]:
        """Wait, while the GPUs are polled, until the driver lists no rank any more; why it does not."""
        if self._gpus is None:
            return ()
        return wait_until_freed(ranks, self._gpus, patience, is_named=names_all_processes())

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
            store_port=self._store.port,
            prefix=prefix,
            store_timeout_s=GIVES_UP_SHARE * order.limit_s,
            collective_timeout_s=collective_timeout_s(order),
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
            failed = any(rank.has_failed for rank in ranks)
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


def collective_timeout_s(order: TrialOrder) -> float:
    """After which a collective of the trial gives up; see `RankOrder`."""
    return (NCCL_SHARE if order.case.backend == "nccl" else GIVES_UP_SHARE) * order.limit_s


def _note(order: TrialOrder, texts: Iterable[str]) -> None:
    """Keep what the ranks' end left behind where the node's collectors keep what they miss."""
    with suppress(LogUnwritable):  # Nothing else could be told there either.
        for text in texts:
            log = SampleLog(Path(order.folder) / f"node{NODE}.jsonl")
            log.write(Note(trial=order.trial, time_ns=time.time_ns(), text=text))
            log.close()


def _ended(order: TrialOrder, ranks: Sequence[RankProcess], outcome: Outcome) -> TrialEnded:
    ends = tuple(rank.end() for rank in ranks)
    for rank in ranks:  # Flight records serve blame, which has read them by now.
        with suppress(FileNotFoundError):
            (Path(order.folder) / f"rank{rank.order.rank}.flight.json").unlink()
    cause = root_cause(ends, order.folder, order.limit_s)
    if cause is None:  # Whoever was late was done all the same.
        return TrialEnded(run=order.run, trial=order.trial, outcome="done")
    if outcome == "interrupted":
        cause = Cause(kind="interrupted", rank=None, step=None, text="a person or a signal ended it")
    return TrialEnded(run=order.run, trial=order.trial, outcome=outcome, cause=cause)
