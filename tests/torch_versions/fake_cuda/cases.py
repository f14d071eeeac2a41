"""The cases that are stepped on the fake CUDA: those of the shipped suites, and the options that parity names.

Cases that take the same way and hold as much on a rank are folded into one: of those that differ in the number of
ranks that share the batch alone, the one with the fewest ranks. Accumulation stops after the second microbatch, and
1F1B after twice as many as it has in flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

from bench.case import Case, check
from bench.errors import Misuse
from bench.suite.file import read_suite
from bench.suite.form.document import shipped_suites
from bench.suite.plan import plan_suite
from tests.bench.made.nodes import CPU

SETTINGS = {"smoke": ("defaults.device=cuda",), "nightly": ("defaults.device=cuda",)}
"""Suites that run on a CPU unless they find a GPU."""
PROBE_SIZES = {"max_bytes": 65536, "max_size": 256, "size_bytes": 1 << 20}
"""A probe takes the same way with any size; smoke's."""


def suite_cases() -> Iterator[tuple[str, Case]]:
    """Yield the cases of the shipped suites that run on CUDA, by suite and name, not folded.

    Left out: fire drills, which are on the CPU; compiled blocks, for which no compiler for GPUs is here; `pairs`, which
    compares what arrives with what was sent.
    """
    for suite, path in shipped_suites().items():
        for planned in plan_suite(read_suite(path, SETTINGS.get(suite, ())), CPU, "nothing was measured").cases:
            case = planned.possible
            if case is None or case.device == "cpu" or case.strategy == "pairs":
                continue
            if case.options.get("compile", "none") == "none":
                yield f"{suite}: {planned.suite_case.name}", case


def folded_cases() -> dict[str, Case]:
    """Return the cases of the suites without those that another one stands for, as they are stepped."""
    by_way: dict[object, tuple[str, Case]] = {}
    for name, case in suite_cases():
        stepped = _short(case)
        way = _way(stepped)
        if way not in by_way or stepped.ranks < by_way[way][1].ranks:
            by_way[way] = name, stepped
    return dict(by_way.values())


def option_cases() -> dict[str, Case]:
    """Return smoke's case of each strategy in bf16 with each set of options by which the parity test compares it."""
    smoke = [case for name, case in suite_cases() if name.startswith("smoke: ") and case.model is not None]
    cases = {}
    for case in {case.strategy: case for case in smoke}.values():
        for variant in case.spec().parity.variants:
            of_variant = replace(case, precision="bf16", options={**case.options, **variant})
            words = " ".join(f"{option}={value}" for option, value in variant.items())
            with suppress(Misuse):  # It is refused on CUDA, or needs another shape.
                cases[f"{case.strategy} {words}"] = _short(check(of_variant))
    return cases


def _short(case: Case) -> Case:
    """Return the case with as few steps and microbatches as show all: the first step makes the optimizer's state."""
    options = dict(case.options)
    batch = 0 if case.model is None else case.shape.batch
    if (accumulate := int(options.get("accumulate", 1))) > 2:
        options["accumulate"], batch = 2, batch * 2 // accumulate
    pipeline = None if case.model is None else case.spec().pipeline(case)
    if pipeline is not None and pipeline.schedule == "one_f_one_b":
        fewer = min(pipeline.microbatches, 2 * pipeline.ranks)
        options["microbatches"], batch = fewer, batch * fewer // pipeline.microbatches
    for name, value in PROBE_SIZES.items():
        if case.model is None and name in options:
            options[name] = value
    model = None if case.model is None else replace(case.model, batch=batch)
    return replace(case, model=model, options=options, trials=1, steps=1, warm_up=1, trace_steps=0)


def _way(case: Case) -> object:
    options = tuple(sorted(case.options.items()))
    if case.model is None:
        return case.strategy, case.precision, options
    share = Fraction(case.shape.batch, case.data_ranks)
    return case.strategy, case.precision, options, replace(case.shape, batch=1), share
