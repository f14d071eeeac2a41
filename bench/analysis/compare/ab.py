"""`observatory compare --ab`: measures two sets of options or two checkouts now, in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import get_args

from bench.case import LONGEST_NOTE, Case, Purpose, find_spec, known_options
from bench.engines.local import LocalEngine
from bench.engines.wire.trees import RankTree
from bench.errors import Misuse
from bench.machine.gpus import read_memory
from bench.session.case_args import CaseArgs, NodeResources, case_of_args, check_room, default_lines, read_node
from bench.session.checkouts import Checkout, check_checkout, check_out
from bench.session.measure import CaseOrder, CasePlace, TrialSettings
from bench.session.persist import PersistedRuns
from bench.session.session import Session
from bench.suite.progress import Progress
from workloads.cost_models.shape import DIMENSIONS
from workloads.spec import Backend, ChosenPrecision, Device, SaveMode

_ALIKE = ("trials", "steps", "warm_up", "trace_steps", "seed")
"""Settings that must be equal on both sides: how often and how long they are measured, and with which weights."""
_NUMBERS = ("ranks", "threads", "save_every", *DIMENSIONS)
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRequest:
    """The user's request for a side. settings: KEY=VALUE texts. checkout: a folder or commit; None for this program."""

    settings: tuple[str, ...] = ()
    checkout: str | None = None


# The sides as cases


def args_of_side(args: CaseArgs, settings: Sequence[str], side: str) -> CaseArgs:
    """Return the case of one side: the common arguments, changed by this side's KEY=VALUE settings.

    A key is a parameter of a case (strategy, ranks, shape, a dimension, device, backend, precision, threads, bind) or
    an option of the strategy.

    Raises:
        Misuse: a text is not KEY=VALUE, a key is given twice or must be equal on both sides, or a value is not the
            number or the true or false that the key needs.
    """
    keys = {field.name for field in fields(CaseArgs)} - {"dimensions", "options", "shape_name", *_ALIKE}
    names: set[str] = set()
    options = list(args.options)
    for text in settings:
        key, equals, value = text.partition("=")
        key = key.replace("-", "_")
        if not equals or not value:
            raise Misuse(f'--{side} "{text}" has no value; write it as KEY=VALUE, for example --{side} bucket_mb=1')
        if key in names:
            raise Misuse(f"--{side} gives {key} twice; give it once")
        names.add(key)
        if key in _ALIKE:
            raise Misuse(
                f"--{side} {key} cannot be set for one side: both are measured alike; use --{key.replace('_', '-')}"
            )
        if (key in _NUMBERS and not value.isascii()) or (key in _NUMBERS and not value.isdigit()):
            raise Misuse(f'--{side} {key} is "{value}"; it must be a whole number')
        if key == "bind" and value not in _BOOLEANS:
            raise Misuse(f'--{side} bind is "{value}"; it may be {" or ".join(_BOOLEANS)}')
        if key == "ranks":
            args = replace(args, ranks=(int(value),))
        elif key in DIMENSIONS:
            args = replace(args, dimensions={**args.dimensions, key: int(value)})
        elif key == "shape":
            args = replace(args, shape_name=value)
        elif key == "bind":
            args = replace(args, bind=_BOOLEANS[value])
        elif key in keys:
            args = replace(args, **{key: int(value) if key in _NUMBERS else value})  # type: ignore[arg-type]
        else:
            options = [option for option in options if option.partition("=")[0] != key] + [f"{key}={value}"]
    if "strategy" in names:  # A common option that this strategy lacks belongs to the other side's.
        known = {option.name for option in known_options(args.strategy)}
        options = [option for option in options if option.partition("=")[0] in known | names]
    return replace(args, options=tuple(options))


def check_choices(args: CaseArgs, side: str) -> CaseArgs:
    """Refuse an unknown value, which the ordinary command-line options refuse by themselves.

    Raises:
        Misuse: a value is unknown; the message lists the known values.
    """

    kinds = (("device", Device), ("backend", Backend), ("precision", ChosenPrecision), ("save_mode", SaveMode))
    for key, kind in kinds:
        value, known = getattr(args, key), get_args(kind)
        if value is not None and value not in known:
            raise Misuse(f'--{side} {key} is "{value}"; it may be {", ".join(known)}')
    return args


@dataclass(slots=True)
class PlannedSide:
    """A checked side. letter: A or B. words: its own settings, for people. tree: of its ranks; None for this program's.

    checkout: what the user named; source of the tree.
    """

    letter: str
    case: Case
    words: str
    checkout: Checkout | None = None
    tree: RankTree | None = None
    crowds: list[str] = field(default_factory=list)

    @property
    def source(self) -> Path | None:
        """The folder of its ranks' source tree; None for this program's."""
        return None if self.tree is None else self.tree.folder

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"{self.letter}, {self.description}"

    @property
    def description(self) -> str:
        """The case, and the side's own settings."""
        return f"{self.case.title}, {self.words}" if self.words else self.case.title


def plan_side(letter: str, args: CaseArgs, request: SideRequest, node: NodeResources) -> PlannedSide:
    """Return one side, checked against this machine.

    Raises:
        Misuse, InfrastructureFailed: as in `observatory run`.
    """
    side = letter.lower()
    try:
        own = check_choices(args_of_side(args, request.settings, side), side)
        case = case_of_args(own, None if own.ranks is None else own.ranks[0], node)
        room = check_room(case, node, read_memory(node.gpus.gpus) if case.device == "cuda" else ())
        crowds = [*default_lines(own, case, node), *room]
    except Misuse as error:
        raise Misuse(f"side {letter}: {error}") from None
    words = [*request.settings, *([] if request.checkout is None else [f"checkout {request.checkout}"])]
    return PlannedSide(letter=letter, case=case, words=" ".join(words), crowds=crowds)


def plan_sides(args: CaseArgs, a: SideRequest, b: SideRequest) -> tuple[PlannedSide, PlannedSide]:
    """Return both sides without starting anything.

    Raises:
        Misuse: the sides are equal or cannot be compared, or one cannot run.
    """
    if a == b:
        find_spec(args.strategy)  # A wrong name is refused before equal sides are.
        raise Misuse(
            "A and B are the same; give --a or --b KEY=VALUE, or --checkout-a or --checkout-b (`observatory compare"
            " --aa SUITE` measures how much two equal sides differ)"
        )
    node = read_node()
    sides = plan_side("A", args, a, node), plan_side("B", args, b, node)
    a_case, b_case = (side.case for side in sides)
    if a_case == b_case and a.checkout == b.checkout:
        raise Misuse(
            f"A and B are the same case, {a_case.title}, because the settings equal the defaults; set something else"
        )
    if a_case.device != b_case.device:
        raise Misuse(
            f"A runs on {a_case.device} and B on {b_case.device}; figures from different hardware cannot be compared"
        )
    if (a_case.model is None or b_case.model is None) and a_case.strategy != b_case.strategy:
        raise Misuse(f"A is {a_case.strategy} and B {b_case.strategy}, which measure different things")
    if args.trials < 2:
        raise Misuse(f"trials is {args.trials}; a comparison needs 2 trials or more, preferably 6: use --trials 6")
    return sides


# Measuring


@contextmanager
def checked_out(sides: Sequence[PlannedSide], requests: Sequence[SideRequest]) -> Iterator[None]:
    """Check out and check the source trees that the sides name, and keep them while the context is open.

    Raises:
        Misuse: a checkout cannot be used, or both are the same tree.
    """
    with ExitStack() as stack:
        for side, request in zip(sides, requests, strict=True):
            if request.checkout is not None:
                side.checkout = stack.enter_context(check_out(request.checkout))
                checked = check_checkout(side.checkout, side.case)
                side.tree, side.case = checked.tree, checked.case
        trees = [None if side.checkout is None else side.checkout.commit or side.source for side in sides]
        if len(set(trees)) == 1 and sides[0].case == sides[1].case:
            raise Misuse(f"--checkout-a and --checkout-b are the same tree, {trees[0]}; name two")
        yield


def measure_sides(
    sides: Sequence[PlannedSide], session: Session, limit_s: float, *, is_drawn: bool | None
) -> PersistedRuns:
    """Measure the sides in turn, A B B A, and store their runs as ad hoc.

    Raises:
        Misuse: the ranks cannot use torch or the GPUs as requested.
        InfrastructureFailed: nothing can be started or stored.
    """
    with ExitStack() as stack:
        for side in sides:
            if side.checkout is not None:
                session.tell(f"{side.letter}: its ranks run from {side.checkout.title}")
        # Sides with one source tree share an engine; for this program's tree it is the session's.
        places: dict[Path | None, CasePlace | None] = {None: None}
        for side in sides:
            if side.source not in places:
                engine = stack.enter_context(LocalEngine(session.runs, tree=side.tree))
                places[side.source] = CasePlace(engine=engine, machine=engine.machine())
        orders = [
            ad_hoc_order(side.title, side.case, f"compare --ab: {side.title}", limit_s, places[side.source])
            for side in sides
        ]
        return take_turns(orders, session, is_drawn=is_drawn)


def ad_hoc_order(title: str, case: Case, note: str, limit_s: float, place: CasePlace | None = None) -> CaseOrder:
    """Return the order of a case whose run is ad hoc, not the newest result of its series."""
    settings = TrialSettings(limit_s=limit_s, purpose=Purpose(note=shortened_note(note)))
    return CaseOrder(case=case, title=title, settings=settings, place=place)


def take_turns(orders: Sequence[CaseOrder], session: Session, *, is_drawn: bool | None) -> PersistedRuns:
    """Measure the cases in turn, A B B A, and store their runs. is_drawn: see `Progress`."""
    with Progress(orders, tell=session.tell, is_drawn=is_drawn) as bars:
        measured = session.measure(orders, bars, is_counterbalanced=True)
    with measured:
        return session.keep(measured)


def shortened_note(text: str) -> str:
    """Return the text as a run's note: on one line, and not too long."""
    line = "".join(letter if letter.isprintable() else "?" for letter in text)
    return line if len(line) <= LONGEST_NOTE else f"{line[: LONGEST_NOTE - 3]}..."
