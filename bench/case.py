"""What to run: a checked Case, and what is comparable with it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

import msgspec

from bench.errors import Misuse
from workloads.cost_models.shape import Shape
from workloads.registry import CARDS, card_of
from workloads.spec import Backend, Card, Device, Option, OptionValue, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One workload in one setting, and how often it is measured.

    version: of the strategy's definition, from its card.
    threads: CPU threads of a rank; a rank on the CPU counts as one device of so many threads.
    model: what is trained, and the batch; None for a probe.
    trials: times that fresh ranks measure it.
    steps, warm_up, trace_steps: optimizer steps of a trial, measured, before that, and after it under the profiler;
    of a probe, the calls of each measurement, and none under the profiler.
    options: all options of the strategy, those left at their default included; see `Card.settled`.
    """

    strategy: str
    version: int
    ranks: int
    model: Shape | None
    device: Device
    backend: Backend
    precision: Precision
    threads: int
    trials: int
    steps: int
    warm_up: int
    trace_steps: int
    seed: int
    options: Mapping[str, OptionValue]

    @property
    def shape(self) -> Shape:
        """The model's dimensions. Do not ask a probe, which has no model."""
        assert self.model is not None, f"{self.strategy} has no model"
        return self.model

    def key(self) -> str:
        """Cases of equal key measure the same thing; how often and how long they measure is not part of it."""
        fields = asdict(self)
        for name in ("trials", "steps", "warm_up", "trace_steps", "seed"):
            del fields[name]
        # The history may know strategies that are no more.
        for card in CARDS:
            if card.name == self.strategy:
                fields["options"] = card.options_in_key(self.options)
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    def positions(self) -> int:
        """How many readings each rank logs while it works: its steps, or the measurements of a probe."""
        card = self.card()
        return card.measurements(self) if card.kind == "probe" else self.warm_up + self.steps

    def card(self) -> Card:
        """The card of the case's strategy."""
        return card_of(self.strategy)


def find_card(name: str) -> Card:
    """The card of that name.

    Raises:
        Misuse: no strategy is called so; the nearest name is offered.
    """
    try:
        return card_of(name)
    except KeyError:
        raise Misuse(f'strategy "{name}" is unknown{_nearest(name, (card.name for card in CARDS))}') from None


def known_options(strategy: str) -> tuple[Option, ...]:
    """The options of the strategy; none of one that is no more, which the history may know."""
    return next((card.options for card in CARDS if card.name == strategy), ())


def _nearest(name: str, known: Iterable[str], card: str = "") -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    offer = f'; did you mean "{close[0]}"?' if close else ""
    return f"{offer} (`{' '.join(['observatory list', *card.split()])}` shows all)"


def parse_options(card: Card, texts: Iterable[str]) -> dict[str, OptionValue]:
    """All options of the strategy, with those that `key=value` texts set.

    Raises:
        Misuse: a text is no key=value, the key is unknown or set twice, or the value is not allowed.
    """
    known = {option.name: option for option in card.options}
    values: dict[str, OptionValue] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise Misuse(f'option "{text}" has no value; write {text}=VALUE')
        if name not in known:
            takers = [other.name for other in CARDS if name in {option.name for option in other.options}]
            whose = f", which {' and '.join(takers)} {'takes' if len(takers) == 1 else 'take'}" if takers else ""
            offer = f" (`observatory list {card.name}` shows all)" if takers else _nearest(name, known, card.name)
            raise Misuse(f'{card.name} has no option "{name}"{whose}{offer}')
        if name in values:
            raise Misuse(f"option {name} is given twice; give it once")
        try:
            values[name] = known[name].parse(value)
        except ValueError as error:
            raise Misuse(f"{card.name}: {error}") from None
    return {name: values.get(name, option.default) for name, option in known.items()}


USUAL = {"trials": 3, "steps": 20, "warm_up": 5, "trace_steps": 3}
"""How often and how long a case is measured unless somebody says otherwise."""
SEED = 0
LEAST = {"ranks": 1, "threads": 1, "trials": 1, "steps": 1, "warm_up": 0, "trace_steps": 0, "seed": 0}
MOST = {
    "ranks": 4096,
    "trials": 10**6,
    "steps": 10**9,
    "warm_up": 10**9,
    "trace_steps": 10**6,
    "seed": 2**63 - 1,
}
"""Beyond any node and any patience; what memory and cores allow is less, and is asked in `preflight`."""


def check(case: Case) -> Case:
    """The case itself, if it can be run.

    Raises:
        Misuse: a number is too small or too large, the strategy needs something else, or its card refuses it.
    """
    card = case.card()
    for name, least in LEAST.items():
        if getattr(case, name) < least:
            raise Misuse(f"{name.replace('_', '-')} is {getattr(case, name)}; it must be {least} or more")
    for name, most in MOST.items():
        if getattr(case, name) > most:
            raise Misuse(f"{name.replace('_', '-')} is {getattr(case, name)}; it must be {most} or less")
    needs = card.needs
    if case.ranks < needs.minimum_ranks or (needs.maximum_ranks is not None and case.ranks > needs.maximum_ranks):
        raise Misuse(f"{card.name}: ranks is {case.ranks}; it needs {needs.text()}")
    if case.device not in needs.devices:
        raise Misuse(f"{card.name}: device is {case.device}; it needs {needs.text()}")
    if case.device == "cpu" and case.backend == "nccl":
        raise Misuse("backend nccl needs --device cuda; on the CPU it is gloo")
    reasons = card.all_refusals(case)
    if reasons:
        raise Misuse(f"{card.name}: {'; '.join(reasons)}")
    return case


def one_rank_baseline(case: Case, scaling: str) -> Case | None:
    """The case of `single` that scaling efficiency is read against; None where it would not divide.

    scaling: "weak" has the work of one rank that trains, "strong" has the whole case's work.
    """
    batch = case.shape.batch
    if scaling == "weak":
        trained = case.card().training_ranks(case)
        if batch % trained:
            return None
        batch //= trained
    single = card_of("single")
    options = {option.name: case.options.get(option.name, option.default) for option in single.options}
    baseline = replace(
        case,
        strategy=single.name,
        version=single.version_on(case.device),
        ranks=1,
        model=replace(case.shape, batch=batch),
        options=options,
        backend="nccl" if case.device == "cuda" else "gloo",
    )
    return None if single.all_refusals(baseline) else baseline


# What a rank looks at when it is asked to, in steps of their own beside the measured ones, and no part of speed.


class Looks(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for.

    trace_every: measured steps between one window of the profiler and the next; None has one window, after them all.
    memory_snapshot: the memory of one step by category, and on CUDA the history of its blocks.
    """

    trace_every: int | None = None
    memory_snapshot: bool = False


NO_LOOKS = Looks()


def check_looks(looks: Looks, case: Case) -> Looks:
    """The looks themselves, if the case's ranks can take them.

    Raises:
        Misuse: windows would come without steps between them, or without steps in them.
    """
    if looks.trace_every is None:
        return looks
    if looks.trace_every < 1:
        raise Misuse(f"trace-every is {looks.trace_every}; it must be 1 or more measured steps")
    if not case.trace_steps:
        raise Misuse("--trace-every repeats the profiler's window, and trace-steps is 0; take --trace-steps 1 or more")
    return looks


# Why a run is made, and which runs are kept as ad hoc: in the history like all, and no series' newest result.

Origin = Literal["run", "nightly"]
"""Who says that a case is measured: a person by one run, or something that repeats it. A declared suite is one more."""

LONGEST_NOTE = 200


class Purpose(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is for. note: a person's words, which make a run ad hoc."""

    origin: Origin = "run"
    note: str | None = None


ONE_RUN = Purpose()


def check_purpose(purpose: Purpose) -> Purpose:
    """The purpose itself, if it is one.

    Raises:
        Misuse: the note is empty, too long or cannot be printed, or the run is to be nightly and ad hoc.
    """
    note = purpose.note
    if note is None:
        return purpose
    if not note.strip():
        raise Misuse("note is empty; say what the run is for, or leave --note out")
    if len(note) > LONGEST_NOTE:
        raise Misuse(f"note has {len(note)} letters; it may have {LONGEST_NOTE}")
    if not note.isprintable():
        raise Misuse("note has a letter that cannot be printed, as a new line or an escape; take plain text")
    if purpose.origin != "run":
        raise Misuse(f"--note keeps a run as ad hoc, and --{purpose.origin} does not; leave one of them out")
    return purpose


def why_ad_hoc(case: Case, purpose: Purpose) -> tuple[str, ...]:
    """What makes the run ad hoc; empty where it is a result of its series.

    Options that are part of the case's key make another series, and say nothing here. Those that are not, and that
    figures depend on, do: a run that measures less than usual, or other weights and data. One that measures more does
    not, for it is as good a result.
    """
    return () if purpose.origin != "run" else tuple(_reasons(case, purpose))


def _reasons(case: Case, purpose: Purpose) -> Iterator[str]:
    if purpose.note is not None:
        yield "it has a note"
    for name, usual in USUAL.items():
        if name == "trace_steps" and case.model is None:
            continue  # Probes trace nothing.
        if (value := getattr(case, name)) < usual:
            yield f"{name.replace('_', '-')} {value}, usual are {usual}"
    if case.seed != SEED:
        yield f"seed {case.seed}, usual is {SEED}"
