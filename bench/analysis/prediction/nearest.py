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

STRATEGIES = ("fsdp", "hsdp", "three_d")
"""Alternative strategies to try: they need less memory on each rank, and run on any machine."""
SPLITS = (2, 4, 8)
"""Factors to try on the number of microbatches."""
STAGES = (2, 4, 8, 16)
"""Pipelines of `three_d` to try."""
MOST_MICROBATCHES = 64
"""Upper limit of their microbatches."""
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
    # A sequence for each rank, more of the machine's GPUs, then more nodes.
    node, own_batch = machine.table.gpus_per_node, case.shape.batch
    counts = [case.ranks] * (own_batch < case.ranks)
    counts += [ranks for factor in GROWTH if (ranks := factor * case.ranks) < machine.gpus]
    counts += [machine.gpus] * (machine.gpus > case.ranks) + [factor * machine.gpus for factor in GROWTH]
    for ranks in counts:
        if ranks > MOST_RANKS:
            return
        nodes = math.ceil(ranks / node)
        on = machine if ranks <= machine.gpus else machine.with_nodes(nodes)
        there = "" if on is machine else f"{on.words_to_choose} "
        grown: list[tuple[str, Case]] = []
        for batch in dict.fromkeys((own_batch, max(own_batch, ranks), own_batch * ranks // case.ranks)):
            if (ranks, batch) != (case.ranks, own_batch):
                changes = [f"--ranks {ranks}"] * (ranks != case.ranks) + [f"--batch {batch}"] * (batch != own_batch)
                larger = replace(case, ranks=ranks, nodes=nodes, model=replace(case.shape, batch=batch))
                grown.append((there + " ".join(changes), larger))
        for words, larger in grown:
            with suppress(Misuse):
                scaled = check(settle(larger), is_here=False)
                yield words, scaled, on
                for more, tried in _options(scaled):
                    yield f"{words} {more}", tried, on
        for words, larger in grown:
            for more, tried in _strategies(larger, on):
                yield f"{more} {words}", tried, on


def _options(case: Case) -> Iterator[tuple[str, Case]]:
    """Yield the case with checkpointing, then with smaller microbatches as well, then with sharded states as well."""
    whole = {"checkpoint": "full"} if case.options.get("checkpoint") not in (None, "full") else {}
    if case.options.get("checkpoint_every", 1) != 1 and "checkpoint" in case.options:
        whole["checkpoint_every"] = "1"
    sharded = {"sharded": "true"} if case.options.get("sharded") is False else {}
    option = microbatch_option(case)
    count = int(case.options[option.name])
    for more in (sharded, {}) if sharded else ({},):
        for changes in (more, {**more, **whole}):
            if changes:
                yield from _changed(case, changes)
        for factor in SPLITS:
            yield from _changed(case, {**more, **whole, option.name: str(factor * count)})


def _strategies(case: Case, machine: PlannedMachine) -> Iterator[tuple[str, Case]]:
    """Yield the case with strategies that shard more, without and with checkpointing, then in smaller microbatches."""
    for name in STRATEGIES:
        if name == case.strategy:
            continue
        known = {option.name for option in find_spec(name).options}
        own = {key: written(value) for key, value in options_set(case).items() if key in known}
        if name == "three_d":
            for sizes in _meshes(case, machine):
                yield from _changed(case, {**own, **sizes, "checkpoint": "full"}, strategy=name)
            continue
        whole = {**own, "checkpoint": "full"}
        for changes in (own, whole, *({**whole, "accumulate": str(count)} for count in SPLITS)):
            yield from _changed(case, changes, strategy=name)


def _meshes(case: Case, machine: PlannedMachine) -> Iterator[dict[str, str]]:
    """Yield options of `three_d` that shard products within a node, on few stages first, in small microbatches."""
    node = machine.table.gpus_per_node
    for stages in STAGES:
        if not (replicas := case.ranks // (node * stages)):
            return
        batch = max(1, case.shape.batch // replicas)
        yield {
            "tensor_ranks": str(node),
            "pipeline_ranks": str(stages),
            "microbatches": str(max(count for count in range(1, MOST_MICROBATCHES + 1) if batch % count == 0)),
            "sequence_parallel": "true",
            **({"balance": "flops"} if case.shape.layers % stages else {}),
            **({"data_axis": "fsdp"} if replicas > 1 else {}),
        }


def _changed(case: Case, options: Mapping[str, str], *, strategy: str | None = None) -> Iterator[tuple[str, Case]]:
    """Yield the case with these options changed, if its spec accepts them."""
    spec = find_spec(strategy or case.strategy)
    words = " ".join([*([] if strategy is None else [strategy]), *(f"--option {text}" for text in _texts(options))])
    if strategy is None:
        # Without what was settled: a default may depend on the changed options.
        options = {**{key: written(value) for key, value in options_set(case).items()}, **options}
    with suppress(Misuse):
        values = parse_options(spec, _texts(options))
        changed = replace(case, strategy=spec.name, version=spec.version_on(case.device), options=values)
        yield words, check(settle(changed), is_here=False)


def _texts(options: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in options.items()]
