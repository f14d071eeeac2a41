"""`observatory compare --ab`: two option sets or two checkouts, measured now and in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from bench.case import LONGEST_NOTE, Case, Purpose, known_options
from bench.engines.local import LocalEngine
from bench.errors import InfrastructureFailed, Misuse
from bench.machine.device_checks import check_torch
from bench.machine.gpus import read_memory
from bench.runner.case_args import CaseArgs, NodeResources, case_of_args, check_room, read_node
from bench.runner.checkouts import Checkout, check_checkout, check_out
from bench.runner.measure import CaseOrder, CasePlace, TrialSettings, measure
from bench.runner.patient_store import PatientStore
from bench.runner.persist import PersistedRuns, persist
from bench.runs.history import History
from bench.runs.run_dir import check_place
from bench.runs.summary import Summary
from workloads.cost_models.shape import DIMENSIONS

_ALIKE = ("trials", "steps", "warm_up", "trace_steps", "seed")
"""How often and how long a side is measured, and with which weights: alike on both, or there is nothing to compare."""
_NUMBERS = ("ranks", "threads", *DIMENSIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One side as a person asks for it. settings: KEY=VALUE texts. checkout: a folder or commit; None: this program."""

    settings: tuple[str, ...] = ()
    checkout: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where runs are kept, how long a trial may take, and who is told what goes on."""

    runs: Path
    store: str | None
    limit_s: float
    tell: Callable[[str], None]

    def check(self) -> None:
        """Refuse what cannot be, before anything starts.

        Raises:
            Misuse: the limit is no time.
            InfrastructureFailed: the places cannot be used.
        """
        if not 1 <= self.limit_s < float("inf"):
            raise Misuse(f"limit is {self.limit_s:g}; it must be a number of seconds, 1 or more")
        check_place(self.runs)

    def open_store(self) -> PatientStore:
        """Return the store, which may be down: what is measured meanwhile stays in the folders of its runs."""
        return PatientStore(History(self.store), runs=self.runs, url=self.store, tell=self.tell, work="comparison")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """What was measured in turn: the runs of each order, as they were kept, and whether a person ended it."""

    kept: PersistedRuns
    is_interrupted: bool = False
    lost_engine: bool = False


# The sides as cases.


def args_of_side(args: CaseArgs, settings: Sequence[str], side: str) -> CaseArgs:
    """Return the case of one side: what both have, with this side's own KEY=VALUE.

    A key is one of a case (strategy, ranks, shape, a dimension, device, backend, precision, threads), or an option of
    the strategy.

    Raises:
        Misuse: a text is no KEY=VALUE, a key is given twice or must be alike on both sides, or a number is none.
    """
    keys = {one.name for one in fields(CaseArgs)} - {"dimensions", "options", "shape_name", *_ALIKE}
    seen: set[str] = set()
    options = list(args.options)
    for text in settings:
        key, equals, value = text.partition("=")
        key = key.replace("-", "_")
        if not equals or not value:
            raise Misuse(f'--{side} "{text}" has no value; write it as KEY=VALUE, such as --{side} bucket_mb=1')
        if key in seen:
            raise Misuse(f"--{side} gives {key} twice; give it once")
        seen.add(key)
        if key in _ALIKE:
            raise Misuse(
                f"--{side} {key} cannot be of one side: both are measured alike; give --{key.replace('_', '-')}"
            )
        if (key in _NUMBERS and not value.isascii()) or (key in _NUMBERS and not value.isdigit()):
            raise Misuse(f'--{side} {key} is "{value}"; it must be a whole number')
        if key == "ranks":
            args = replace(args, ranks=(int(value),))
        elif key in DIMENSIONS:
            args = replace(args, dimensions={**args.dimensions, key: int(value)})
        elif key == "shape":
            args = replace(args, shape_name=value)
        elif key in keys:
            args = replace(args, **{key: int(value) if key in _NUMBERS else value})  # type: ignore[arg-type]
        else:
            options = [option for option in options if option.partition("=")[0] != key] + [f"{key}={value}"]
    if "strategy" in seen:  # An option that both sides were given and that this strategy lacks is the other's.
        known = {option.name for option in known_options(args.strategy)}
        options = [one for one in options if one.partition("=")[0] in known | seen]
    return replace(args, options=tuple(options))


def check_choices(args: CaseArgs, side: str) -> CaseArgs:
    """Refuse a word that a case cannot have, which the options of a command line refuse themselves.

    Raises:
        Misuse: it names the words that there are.
    """
    from typing import get_args

    from workloads.spec import Backend, Device, Precision

    for key, kind in (("device", Device), ("backend", Backend), ("precision", Precision)):
        value, known = getattr(args, key), get_args(kind)
        if value is not None and value not in known:
            raise Misuse(f'--{side} {key} is "{value}"; it may be {", ".join(known)}')
    return args


@dataclass(slots=True)
class PlannedSide:
    """One side, checked. letter: A or B. words: what is its own, for people."""

    letter: str
    case: Case
    words: str
    checkout: Checkout | None = None
    crowds: list[str] = field(default_factory=list)

    @property
    def source(self) -> Path | None:
        """The source tree of its ranks; None for this program's."""
        return None if self.checkout is None else self.checkout.folder

    @property
    def title(self) -> str:
        """What a message calls it."""
        return f"{self.letter}, {self.description}"

    @property
    def description(self) -> str:
        """What it measures, and what is its own."""
        return f"{self.case.title}, {self.words}" if self.words else self.case.title


def plan_side(letter: str, args: CaseArgs, wanted: Wanted, node: NodeResources) -> PlannedSide:
    """Return one side, checked against this machine.

    Raises:
        Misuse, InfrastructureFailed: as `observatory run` would.
    """
    side = letter.lower()
    try:
        own = check_choices(args_of_side(args, wanted.settings, side), side)
        case = case_of_args(own, None if own.ranks is None else own.ranks[0], node)
        crowds = check_room(case, node, read_memory(node.gpus.gpus) if case.device == "cuda" else ())
    except Misuse as error:
        raise Misuse(f"side {letter}: {error}") from None
    words = [*wanted.settings, *([] if wanted.checkout is None else [f"checkout {wanted.checkout}"])]
    # Two sides may be one case: each has an object of its own, by which it is told apart while it runs.
    return PlannedSide(letter=letter, case=replace(case), words=" ".join(words), crowds=crowds)


def plan_sides(args: CaseArgs, a: Wanted, b: Wanted) -> tuple[PlannedSide, PlannedSide]:
    """Return both sides; start nothing.

    Raises:
        Misuse: they are the same, or cannot be compared; or one cannot be run.
    """
    if a == b:
        raise Misuse(
            "A and B are the same; give --a or --b KEY=VALUE, or --checkout-a or --checkout-b (`observatory compare"
            " --aa SUITE` measures how much two of the same differ)"
        )
    node = read_node()
    one, other = plan_side("A", args, a, node), plan_side("B", args, b, node)
    if one.case == other.case and a.checkout == b.checkout:
        raise Misuse(
            f"A and B come to the same case, {one.case.title}: what they set is the default; set something else"
        )
    if one.case.device != other.case.device:
        raise Misuse(
            f"A runs on {one.case.device} and B on {other.case.device}; figures of different hardware are not of one"
            " series"
        )
    if (one.case.model is None or other.case.model is None) and one.case.strategy != other.case.strategy:
        raise Misuse(f"A is {one.case.strategy} and B {other.case.strategy}, which measure different things")
    if args.trials < 2:
        raise Misuse(f"trials is {args.trials}; two sides are compared by 2 trials or more, best 6: --trials 6")
    return one, other


# Measuring.


def measure_sides(sides: Sequence[PlannedSide], wanted: Sequence[Wanted], places: Places) -> Turns:
    """Measure the sides in turn, A B B A, and keep their runs as ad hoc.

    Raises:
        Misuse: a checkout cannot be used, or the ranks cannot use torch or the GPUs as asked.
        InfrastructureFailed: nothing can be started or stored.
    """
    with ExitStack() as stack:
        for side, one in zip(sides, wanted, strict=True):  # What is wrong with one is said before anything is written.
            if one.checkout is not None:
                side.checkout = stack.enter_context(check_out(one.checkout))
                check_checkout(side.checkout, side.case)
        trees = [None if side.checkout is None else side.checkout.commit or side.source for side in sides]
        if len(set(trees)) == 1 and sides[0].case == sides[1].case:
            raise Misuse(f"--checkout-a and --checkout-b are the same tree, {trees[0]}; name two")
        store = stack.enter_context(places.open_store())
        for side in sides:
            if side.checkout is not None:
                places.tell(f"{side.letter}: its ranks run from {side.checkout.title}")
        # Sides of one source tree share an agent, which tells its machine once.
        of_source: dict[Path | None, CasePlace] = {}
        for side in sides:
            if side.source not in of_source:
                engine = stack.enter_context(LocalEngine(places.runs, source=side.source))
                of_source[side.source] = CasePlace(engine=engine, machine=engine.machine())
        orders = [(side.title, side.case, of_source[side.source], f"compare --ab: {side.title}") for side in sides]
        return take_turns(orders, places, store)


def take_turns(orders: Sequence[tuple[str, Case, CasePlace, str]], places: Places, store: PatientStore) -> Turns:
    """Measure the cases in turn, A B B A, and keep their runs.

    orders: title, case, place and note of each; the cases are objects of their own.
    """
    titles = {id(case): title for title, case, _, _ in orders}
    begun_s = time.monotonic()
    told: set[tuple[int, int]] = set()

    def watch(case: Case, trial: int, steps: int) -> None:
        if (id(case), trial) not in told:
            told.add((id(case), trial))
            elapsed_s = time.monotonic() - begun_s
            places.tell(f"{titles[id(case)]}: trial {trial + 1} of {case.trials} begins after {elapsed_s:.0f} s")

    for _, case, place, _ in orders:
        check_torch(case, place.machine)
    measured = measure(
        [
            CaseOrder(
                case=case,
                settings=TrialSettings(
                    limit_s=places.limit_s, store=places.store, purpose=Purpose(note=shortened_note(note))
                ),
                place=place,
            )
            for _, case, place, note in orders
        ],
        engine=orders[0][2].engine,
        machine=orders[0][2].machine,
        folder=places.runs,
        watch=watch,
        is_counterbalanced=True,
    )
    summaries: list[Summary] = []
    failures: list[InfrastructureFailed] = []
    try:
        history = store.ready()
        failures += [] if store.failure is None else [store.failure]
        # Each side is kept with its own machine, whose commit may be another.
        for summary, (_, _, place, _) in zip(measured.summaries, orders, strict=True):
            kept = persist([summary], place.machine, history, None)
            summaries += kept.summaries
            failures += kept.failures
    finally:
        measured.close()
    return Turns(
        kept=PersistedRuns(summaries=tuple(summaries), failures=tuple(failures)),
        is_interrupted=measured.is_interrupted,
        lost_engine=measured.lost_engine,
    )


def shortened_note(text: str) -> str:
    """Return a note of a run that is not too long, on one line."""
    line = "".join(letter if letter.isprintable() else "?" for letter in text)
    return line if len(line) <= LONGEST_NOTE else f"{line[: LONGEST_NOTE - 3]}..."
