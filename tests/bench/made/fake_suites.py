"""Suites of fake ranks, run without processes: each engine that is opened breaks in its own way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.case import Case
from bench.engines.registry import Engine
from bench.engines.wire.trees import RankTree
from bench.errors import InfrastructureFailed
from bench.machine.machine import Machine
from bench.rank.messages import FailureCause
from bench.session.case_args import CaseArgs
from bench.session.patient_store import PatientStore
from bench.session.session import Session
from bench.store.history import History
from bench.store.summary import Summary
from bench.suite.choice import choose
from bench.suite.file import Suite, SuiteCase
from bench.suite.folder import begin, resume
from bench.suite.ledger import Judgement, LedgerWriter, SuiteState
from bench.suite.plan import PlannedCase, SuitePlan
from bench.suite.reruns import Suspects
from bench.suite.run import Display, SuiteEnd, SuiteRunner
from tests.bench.made.examples import SMALL, make_machine, small_case
from tests.bench.made.fake_engine import FakeEngine
from tests.bench.made.fake_runs import DDP_STEPS_S, SINGLE_STEPS_S

STEPS_S = {"ddp": DDP_STEPS_S, "fsdp": DDP_STEPS_S, "zero1": DDP_STEPS_S, "single": SINGLE_STEPS_S}
Breaks = Mapping[tuple[str, int], FailureCause | BaseException]

TINY_SHAPE = """
layers = 1
width = 16
heads = 2
kv_heads = 1
mlp_width = 32
vocabulary = 32
sequence = 8
"""
"""Keys of a suite file for a model that takes no time."""

LOST_AGENT = InfrastructureFailed("the agent of this machine ended with code -9")
UNHEARD = FailureCause(kind="interrupted", rank=None, step=None, text="the agent ended it: no message for 7 s")
FULL_DISK = FailureCause(kind="disk", rank=0, step=1, text="rank 0 could not write its log: No space left on device")


def planned(
    name: str,
    strategy: str | None = None,
    *,
    case: Case | None = None,
    refusal: str | None = None,
    estimate_s: float | None = None,
    **changes: Any,
) -> PlannedCase:
    """A case of three trials, named like its strategy, in a block of its own."""
    strategy = strategy or name
    ranks = len(STEPS_S[strategy][0])
    model = replace(SMALL, batch=2) if strategy == "single" else SMALL
    suite_case = SuiteCase(
        **{"name": name, "table": name, "block": name, "args": CaseArgs(strategy=strategy, ranks=(ranks,)), **changes}
    )
    return PlannedCase(
        suite_case=suite_case,
        case=case or small_case(strategy, ranks, trials=3, model=model),
        fault=None,
        refusal=refusal,
        crowds=(),
        estimate_s=estimate_s,
    )


def plan_of(*cases: PlannedCase, name: str = "smoke", digest: str = "d" * 64) -> SuitePlan:
    """A suite of these cases."""
    suite = Suite(
        name=name,
        description="",
        path=Path(f"{name}.toml"),
        is_nightly=False,
        period_s=None,
        cases=tuple(one.suite_case for one in cases),
        levers=(),
        digest=digest,
    )
    return SuitePlan(suite=suite, cases=cases)


class FakeClock:
    """Time that passes while somebody sleeps."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        """Let it pass."""
        self.now_s += pause_s


class RecordedDisplay(Display):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.summaries: dict[str, Summary | None] = {}

    def tell(self, line: str) -> None:
        """Keep the line."""
        self.lines.append(line)

    def case_begins(self, planned: PlannedCase, run: object) -> None:
        """Keep the case's name."""
        self.events.append(("begins", planned.suite_case.name))

    def case_ended(self, planned: PlannedCase, judgement: Judgement, summary: Summary | None) -> None:
        """Keep how it ended."""
        self.events.append((judgement.outcome, planned.suite_case.name))
        self.summaries[planned.suite_case.name] = summary


class FakeAllocation:
    """Nodes on which the engines are opened that a test wants. open_tree: opens the one of a source tree."""

    def __init__(
        self, open_engine: Callable[[], Engine], open_tree: Callable[[RankTree], Engine] | None = None
    ) -> None:
        self._open_engine = open_engine
        self._open_tree = open_tree

    def __enter__(self) -> FakeAllocation:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to release."""

    def open(self, runs: Path, dropped: Collection[str] = ()) -> Engine:
        """The next engine."""
        return self._open_engine()

    def open_trees(self, runs: Path, trees: Sequence[RankTree], dropped: Collection[str] = ()) -> tuple[Engine, ...]:
        """The engine of each tree."""
        assert self._open_tree is not None, "the test has trees"
        return tuple(self._open_tree(tree) for tree in trees)


@dataclass
class FakeNight:
    """A folder of runs, a store, and engines, the next of which breaks as the first of `breaks` says.

    orders: the trials that each engine was told to run. clock_s: moves by `trial_s` with each trial. machine: the one
    that engines report. pairs, open_tree: of source trees, see `SuiteRunner` and `FakeAllocation`.
    """

    folder: Path
    breaks: list[Breaks] = field(default_factory=list)
    engines: list[FakeEngine] = field(default_factory=list)
    display: RecordedDisplay = field(default_factory=RecordedDisplay)
    trial_s: float = 0.0
    machine: Machine = field(default_factory=make_machine)
    suspects: Suspects | None = None
    pairs: Callable[[SuiteRunner, float | None], bool] | None = None
    open_tree: Callable[[RankTree], Engine] | None = None

    @property
    def runs(self) -> Path:
        """The folder of runs."""
        return self.folder / "runs"

    @property
    def url(self) -> str:
        """The store."""
        return f"sqlite:///{self.folder / 'history.sqlite'}"

    @property
    def orders(self) -> list[tuple[str, int]]:
        """All trials that were run, in their order."""
        return [order for engine in self.engines for order in engine.orders]

    def open_engine(self) -> FakeEngine:
        """The next engine."""
        self.runs.mkdir(exist_ok=True)
        breaks = self.breaks.pop(0) if self.breaks else {}
        self.engines.append(FakeEngine(self.machine, STEPS_S, breaks, runs=self.runs))
        return self.engines[-1]

    def run(self, plan: SuitePlan, **choice: Any) -> SuiteEnd:
        """Run the suite from its beginning."""
        chosen = choose(plan, SuiteState(), **choice)
        with begin(plan.suite, self.runs) as ledger:
            return self._go(plan, ledger, chosen, choice.get("budget_s"))

    def resume(self, plan: SuitePlan, suite_run: str | None = None, **choice: Any) -> SuiteEnd:
        """Go on with this suite run, or with the newest that has not ended well."""
        with resume(plan.suite, self.runs, suite_run) as ledger:
            return self._go(plan, ledger, choose(plan, ledger.state, **choice), choice.get("budget_s"))

    def _go(self, plan: SuitePlan, ledger: LedgerWriter, chosen: Any, budget_s: float | None) -> SuiteEnd:
        with self.session() as session:
            return SuiteRunner(
                plan,
                ledger,
                session,
                self.display,
                budget_s=budget_s,
                clock_s=lambda: len(self.orders) * self.trial_s,
                suspects=self.suspects,
                pairs=self.pairs,
            ).run(chosen)

    @contextmanager
    def session(self, open_engine: Callable[[], Engine] | None = None) -> Iterator[Session]:
        """The history, open, and the night's engines, unless others are to be opened."""
        with History(self.url) as history:
            clock, tell = FakeClock(), self.display.tell
            store = PatientStore(history, runs=self.runs, url=self.url, tell=tell, clock_s=clock, sleep=clock.sleep)
            allocation = FakeAllocation(open_engine or self.open_engine, self.open_tree)
            yield Session(runs=self.runs, store_url=self.url, store=store, allocation=allocation, tell=tell)

    def stored(self) -> Sequence[Summary]:
        """What the history has."""
        with History(self.url) as history:
            return history.runs(limit=99)
