"""Finds a setup that fits near a case that does not: checkpointing, smaller microbatches, another strategy, more nodes.

It tries a few setups, smallest change first. Cost models decide; nothing is measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from bench.analysis.prediction.memory import MemoryFit, least_parts, memory_fit
from bench.case import MOST, Case, check, find_spec, options_set, parse_options, settle, written
from bench.errors import Misuse
from bench.machine.machines.machine_file import PlannedMachine
from workloads.options import microbatch_option
from workloads.spec import OptionValue

STRATEGIES = ("fsdp", "hsdp", "three_d")
"""Alternative strategies to try: they need less memory on each rank, and run on any machine."""
GROWTH = (2, 4, 8, 16, 32, 64)
"""Factors to try on the number of ranks, then on that of the machine's nodes."""
MOST_RANKS = MOST["ranks"]
"""Upper limit of ranks in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestFit:
    """A setup that fits. words: the change, as typed: "--option checkpoint=full"."""

    words: str
    case: Case
    machine: PlannedMachine
    memory: MemoryFit


def nearest_fit(case: Case, machine: PlannedMachine) -> NearestFit | None:
    """Return the first setup that fits, or None.

    A setup whose peak no cost model predicts may need more, so it is returned only if no other fits.
    """
    uncertain: NearestFit | None = None
    for words, setup, on in _setups(case, machine):
        if sum(least_parts(setup).values()) > on.table.gpu.memory_bytes:
            continue  # Cheaper to compute than the peak.
        memory = memory_fit(setup, on)
        candidate = NearestFit(words=words, case=setup, machine=on, memory=memory)
        if memory.fits and not memory.is_least:
            return candidate
        if memory.fits:
            uncertain = uncertain or candidate
    return uncertain


def _setups(case: Case, machine: PlannedMachine) -> Iterator[tuple[str, Case, PlannedMachine]]:
    """Yield setups that need less memory in some way, in words and as checked cases."""
    if case.model is None:
        return
    for words, tried in (*_options(case), *_strategies(case, machine)):
        yield words, tried, machine
    # More of the machine's GPUs, then more nodes.
    node = machine.table.gpus_per_node
    counts = [ranks for factor in GROWTH if (ranks := factor * case.ranks) < machine.gpus]
    counts += [machine.gpus] * (machine.gpus > case.ranks) + [factor * machine.gpus for factor in GROWTH]
    for ranks in counts:
        if ranks > MOST_RANKS:
            return
        nodes = math.ceil(ranks / node)
        on = machine if ranks <= machine.gpus else machine.with_nodes(nodes)
        there = "" if on is machine else f"{on.words_to_choose} "
        for batch in dict.fromkeys((case.shape.batch, case.shape.batch * ranks // case.ranks)):
            larger = replace(case, ranks=ranks, nodes=nodes, model=replace(case.shape, batch=batch))
            grown = f"{there}--ranks {ranks}" + (f" --batch {batch}" if batch != case.shape.batch else "")
            with suppress(Misuse):
                scaled = check(settle(larger), is_here=False)
                yield grown, scaled, on
                for words, tried in _options(scaled):
                    yield f"{grown} {words}", tried, on
            for words, tried in _strategies(larger, on):
                yield f"{words} {grown}", tried, on


def _options(case: Case) -> Iterator[tuple[str, Case]]:
    """Yield the case with checkpointing, then with smaller microbatches, then with both."""
    whole = {"checkpoint": "full"} if case.options.get("checkpoint") not in (None, "full") else {}
    if case.options.get("checkpoint_every", 1) != 1 and "checkpoint" in case.options:
        whole["checkpoint_every"] = "1"
    if whole:
        yield from _changed(case, whole)
    option = microbatch_option(case)
    count = int(case.options[option.name])
    for factor in (2, 4, 8):
        yield from _changed(case, {**whole, option.name: str(factor * count)})


def _strategies(case: Case, machine: PlannedMachine) -> Iterator[tuple[str, Case]]:
    """Yield the case with strategies that shard more, without and with checkpointing."""
    node = min(machine.table.gpus_per_node, case.ranks)
    for name in STRATEGIES:
        if name == case.strategy:
            continue
        known = {option.name for option in find_spec(name).options}
        own = {key: written(value) for key, value in options_set(case).items() if key in known}
        sized = {"tensor_ranks": str(node), "pipeline_ranks": "1"} if name == "three_d" else {}
        for more in ({}, {"checkpoint": "full"}):
            yield from _changed(case, {**own, **sized, **more}, strategy=name)


def _changed(case: Case, options: Mapping[str, str], *, strategy: str | None = None) -> Iterator[tuple[str, Case]]:
    """Yield the case with these options changed, if its spec accepts them."""
    spec = find_spec(strategy or case.strategy)
    texts = [f"{name}={value}" for name, value in options.items()]
    words = " ".join([*([] if strategy is None else [strategy]), *(f"--option {text}" for text in texts)])
    with suppress(Misuse):
        values: Mapping[str, OptionValue] = parse_options(spec, texts)
        if strategy is None:
            values = {**case.options, **{name: values[name] for name in options}}
        changed = replace(case, strategy=spec.name, version=spec.version_on(case.device), options=values)
        yield words, check(settle(changed), is_here=False)
