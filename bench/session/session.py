"""The open parts of a command that measures: the history, live metrics, and one engine after another on its nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from bench.engines.cluster import NodeRequest
from bench.engines.registry import ENGINES, Allocation, Engine
from bench.engines.wire.trees import RankTree
from bench.errors import CASE_FAILED, FINE, INFRASTRUCTURE, INTERRUPTED, InfrastructureFailed, interrupt_in_order
from bench.machine.device_checks import check_torch
from bench.machine.machine import Machine
from bench.session.measure import CaseOrder, CasePlace, Listener, MeasuredRuns, measure
from bench.session.patient_store import PatientStore
from bench.session.persist import NamedBaseline, PersistedRuns, persist
from bench.store.history import History
from bench.store.summary import Summary


@dataclass(slots=True, kw_only=True)
class Session:
    """Measures blocks of cases in turn, and stores their runs.

    `run` and `compare --ab` measure one block, `compare --aa` one for each case, and a suite those of its ledger.

    runs: the folder of runs, absolute. store_url: as run folders record it. allocation: the nodes on which engines are
    opened. tell: called with progress and problems. dropped: names of nodes that engines leave out.
    """

    runs: Path
    store_url: str | None
    store: PatientStore
    allocation: Allocation
    tell: Callable[[str], None]
    dropped: frozenset[str] = frozenset()
    _engine: Engine | None = None

    def engine(self) -> Engine:
        """Return the open engine; open it if there is none.

        Raises:
            InfrastructureFailed: the nodes are no longer available.
        """
        if self._engine is None:
            self._engine = self.allocation.open(self.runs, self.dropped)
        return self._engine

    def machine(self, *, attempts: int = 1) -> Machine:
        """Return the machine that the ranks of the engine report.

        attempts: how often an engine is opened until one has its agents.

        Raises:
            InfrastructureFailed: the last attempt failed.
        """
        while True:
            attempts -= 1
            try:
                return self.engine().machine()
            except InfrastructureFailed as error:
                self.stop_engine()
                if attempts < 1:
                    raise
                self.tell(f"{error}; another attempt begins")

    def stop_engine(self) -> None:
        """End the engine's processes; the next block gets fresh ones."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.stop()

    @contextmanager
    def open_trees(self, trees: Sequence[RankTree]) -> Iterator[tuple[CasePlace, ...]]:
        """Yield a place for each source tree, all on the session's nodes; its own engine ends first.

        Raises:
            InfrastructureFailed: as `engine` and `Engine.machine`, or the engine runs no other source trees.
        """
        self.stop_engine()
        engines = self.allocation.open_trees(self.runs, trees, self.dropped)
        try:
            yield tuple(
                # Trees of older versions do not know which commit they were unpacked from.
                CasePlace(engine=engine, machine=replace(engine.machine(), commit=tree.commit, is_dirty=False))
                for engine, tree in zip(engines, trees, strict=True)
            )
        finally:
            for engine in engines:
                engine.stop()

    def measure(
        self,
        orders: Sequence[CaseOrder],
        listener: Listener = Listener(),  # noqa: B008  # It has no state.
        *,
        is_counterbalanced: bool = False,
    ) -> MeasuredRuns:
        """Measure a block: its cases in turn, each on the session's engine unless it has a place of its own.

        Raises:
            Misuse, InfrastructureFailed: as `check_torch` and `measure`.
        """
        shared = orders[0].place
        if shared is None or any(order.place is None for order in orders):
            shared = CasePlace(engine=self.engine(), machine=self.machine())
        for order in orders:
            check_torch(order.case, (order.place or shared).machine)
        measured = measure(
            orders,
            engine=shared.engine,
            machine=shared.machine,
            folder=self.runs,
            store=self.store_url,
            ceiling_of=self.store.ceiling_of,
            prediction_of=self.store.prediction_of,
            listener=listener,
            is_counterbalanced=is_counterbalanced,
        )
        if measured.is_interrupted or measured.lost_engine:
            self.stop_engine()
        return measured

    def keep(
        self,
        measured: MeasuredRuns,
        *,
        explicit_baseline: Summary | None = None,
        baselines: Mapping[str, NamedBaseline] | None = None,
        is_curve: bool = False,
        is_last: bool = False,
    ) -> PersistedRuns:
        """Store the runs of a block as `persist` does; the failures include a store that does not answer.

        is_last: query the store even if it failed a moment ago.
        """
        history = self.store.ready(is_last=is_last)
        # Ranks of another source tree report its commit: runs of different trees are no baselines of each other.
        by_machine: list[tuple[Machine, list[Summary]]] = []
        for summary, run in zip(measured.summaries, measured.runs, strict=True):
            if not by_machine or by_machine[-1][0] != run.machine:
                by_machine.append((run.machine, []))
            by_machine[-1][1].append(summary)
        stored = [
            persist(summaries, machine, history, explicit_baseline, is_curve=is_curve, baselines=baselines)
            for machine, summaries in by_machine
        ]
        failures = [] if self.store.failure is None else [self.store.failure]
        return PersistedRuns(
            summaries=tuple(summary for part in stored for summary in part.summaries),
            failures=(*failures, *(failure for part in stored for failure in part.failures)),
            is_interrupted=measured.is_interrupted,
            lost_engine=measured.lost_engine,
        )


@contextmanager
def open_session(
    *,
    runs: Path,
    store_url: str | None,
    tell: Callable[[str], None],
    work: str,
    serving: Callable[..., AbstractContextManager[object]] | None = None,
    engine: str = "local",
    request: NodeRequest | None = None,
) -> Iterator[Session]:
    """Open the history, recover runs that it lacks, serve live metrics, and allocate nodes, until the context ends.

    From here on, Ctrl-C and SIGTERM end the work in order.

    work: its name in messages. serving: serves live metrics; called with the folder of runs, the store's URL and
    `on_notice`; None: no live metrics. engine: its name.

    Raises:
        InfrastructureFailed: the store refuses, or the nodes cannot be allocated.
    """
    interrupt_in_order()
    with (
        PatientStore(History(store_url), runs=runs, url=store_url, tell=tell, work=work) as store,
        nullcontext() if serving is None else serving(runs, store_url, on_notice=tell),
        ENGINES[engine](request or NodeRequest()) as allocation,
    ):
        session = Session(runs=runs.absolute(), store_url=store_url, store=store, allocation=allocation, tell=tell)
        try:
            yield session
        finally:
            session.stop_engine()


def exit_code(blocks: Sequence[PersistedRuns]) -> int:
    """Return the exit code of measured blocks; an interruption comes before the infrastructure, then a failed case."""
    if any(block.is_interrupted for block in blocks):
        return INTERRUPTED
    causes = {summary.cause.kind for block in blocks for summary in block.summaries if summary.cause is not None}
    if any(block.failures for block in blocks) or causes & {"agent", "disk"}:
        return INFRASTRUCTURE
    return CASE_FAILED if causes else FINE
