"""Shows all strategies, all options with the strategies that accept them, or one strategy in full; also as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from rich.console import Console

from bench.case import Case, parse_options, settle, written
from bench.report.table import Block, Table, indented, open_console
from workloads.cost_models.shape import PRESETS
from workloads.spec import Option, OptionValue, StrategySpec

# Refusals of a strategy, found by trying each option alone and each pair of options on a small shape

_PLACES: tuple[dict[str, Any], ...] = (
    {},
    {"precision": "fp16"},
    {"precision": "bf16"},
    {"device": "cuda", "backend": "nccl"},
    {"device": "cuda", "backend": "gloo"},
)
_VALUES = re.compile(r"(?<= is )\S+|(?<==)\w+|\d+")
"""The values in a refusal, in which two refusals of one kind differ."""


def tried_refusals(spec: StrategySpec) -> list[str]:
    """Return the spec's refusals, one of each kind, with the tried values.

    The shape is `tiny`; nothing is started. Not covered: refusals of three options together.
    """
    refusals: dict[str, str] = {}
    for case in _tried_cases(spec):
        for reason in spec.all_refusals(case):
            refusals.setdefault(_VALUES.sub("", reason.partition(";")[0]), reason)
    return list(refusals.values())


def default_case(spec: StrategySpec) -> Case:
    """Return the strategy's default case on a CPU, on the fewest useful ranks."""
    ranks = max(2, spec.needs.minimum_ranks)
    case = Case(
        strategy=spec.name,
        version=spec.version,
        ranks=ranks if spec.needs.maximum_ranks is None else min(ranks, spec.needs.maximum_ranks),
        model=None if spec.kind == "probe" else PRESETS["tiny"],
        device="cpu",
        backend="gloo",
        precision="fp32",
        threads=1,
        trials=1,
        steps=1,
        warm_up=0,
        trace_steps=0,
        seed=0,
        options=parse_options(spec, ()),
    )
    return settle(case)


def example(spec: StrategySpec) -> str:
    """Return a command line that runs the strategy, with the first options of its parity test."""
    case = default_case(spec)
    options = next((variant for variant in spec.parity.variants if variant), {})
    if spec.all_refusals(replace(case, options={**case.options, **options})):
        options = {}
    words = [f"--option {name}={written(value)}" for name, value in options.items()]
    return " ".join([f"observatory run {spec.name} --ranks {case.ranks}", *words])


def _tried_cases(spec: StrategySpec) -> Iterator[Case]:
    base = default_case(spec)
    settings = [(option.name, value) for option in spec.options for value in _other_values(option)]
    for place in _PLACES:
        case = replace(base, **place)
        yield case
        for name, value in settings:
            yield replace(case, options={**case.options, name: value})
    for (name, value), (other, second) in combinations(settings, 2):
        if name != other:
            yield replace(base, options={**base.options, name: value, other: second})


def _other_values(option: Option) -> list[OptionValue]:
    """Return values other than the default: the other choices, larger numbers; none for free text."""
    default = option.default
    if isinstance(default, bool):
        return [not default]
    if option.choices:
        return [choice for choice in option.choices if choice != default]
    if isinstance(default, int):
        return [default + 1, 2 * default + 1]
    return [2 * default + 0.5] if isinstance(default, float) else []


# Printing strategies and options

WIDE = 120
"""Minimum width for the columns kind and parity."""


def strategies_page(specs: Sequence[StrategySpec], console: Console | None = None) -> Iterator[Block]:
    """Yield what each strategy is and needs, for the console's width. console: None for standard output."""
    columns = ["strategy", "kind", "needs", "parity", "what it is"]
    rows = [[spec.name, spec.kind, spec.needs.text(), spec.parity.kind, spec.summary] for spec in specs]
    if (console or open_console()).width < WIDE:
        for row in (columns, *rows):
            del row[3], row[1]
    yield Table(columns, rows, **_FOLDED)
    yield ""
    yield "`observatory list STRATEGY` shows its options and refusals, `observatory list --options` all options"


_FOLDED: dict[str, Any] = {"words": range(5), "unbroken": (0,), "folds": "always"}


def options_page(specs: Sequence[StrategySpec]) -> Iterator[Block]:
    """Yield every option once, with the strategies that accept it."""
    takers: dict[Option, list[str]] = {}
    for spec in specs:
        for option in spec.options:
            takers.setdefault(option, []).append(spec.name)
    training = [spec.name for spec in specs if spec.kind == "training"]
    rows = []
    for option, names in takers.items():
        shown = "all training" if names == training and len(names) > 1 else ", ".join(names)
        rows.append((_with_default(option), shown, f"{option.help} ({option.allowed})"))
    yield Table(("--option", "accepted by", "what it does"), rows, **_FOLDED)


def strategy_page(spec: StrategySpec) -> Iterator[Block]:
    """Yield what a strategy is, needs, accepts and refuses, and a command line that runs it."""
    yield f"{spec.name}: {spec.summary}"
    parity = spec.parity.kind + (f": {spec.parity.reason}" if spec.parity.reason else "")
    facts = (("kind", spec.kind), ("needs", spec.needs.text()), ("parity", parity))
    rows = [(name, value.replace("_", " ")) for name, value in facts]
    yield Table(("", ""), rows, words=(0, 1), has_heading=False, folds="always")
    yield ""
    rows = [(_with_default(option), f"{option.help} ({option.allowed})") for option in spec.options]
    yield Table(("--option", "what it does (allowed values)"), rows, **_FOLDED)
    if refusals := tried_refusals(spec):
        yield ""
        yield "refused combinations (each option and each pair of options was tried):"
        yield from (indented(f"- {reason}") for reason in refusals)
    yield ""
    yield f"example: {example(spec)}"


def spec_fields(spec: StrategySpec, *, is_whole: bool) -> dict[str, object]:
    """Return the spec for JSON. is_whole: also an example and its refusals, which take a while to find."""
    return {
        "name": spec.name,
        "kind": spec.kind,
        "summary": spec.summary,
        "version": spec.version,
        "cuda_version": spec.version_on("cuda"),
        "needs": spec.needs.text(),
        "parity": spec.parity.kind,
        "options": [
            {"name": option.name, "default": option.default, "allowed": option.allowed, "help": option.help}
            for option in spec.options
        ],
        **({"refusals": tried_refusals(spec), "example": example(spec)} if is_whole else {}),
    }


def _with_default(option: Option) -> str:
    return f"{option.name}={written(option.default)}"
