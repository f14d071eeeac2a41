"""Finds the largest preset that each strategy could train on a remote machine, for `observatory list --on`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from bench.analysis.prediction.memory import MemoryFit, least_parts, memory_fit
from bench.analysis.prediction.report import machine_line
from bench.case import Case, check, parse_options, settle
from bench.errors import Misuse
from bench.machine.machines.machine_file import PlannedMachine
from bench.report.format import readable
from bench.report.table import Block, Table
from workloads.cost_models.shape import PRESETS, Shape
from workloads.spec import StrategySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestPreset:
    """The largest preset that fits, in bf16, with checkpointing if the strategy accepts it."""

    preset: str
    case: Case
    memory: MemoryFit


def largest_preset(spec: StrategySpec, machine: PlannedMachine) -> LargestPreset | None:
    """Return the largest preset that fits with one sequence per rank; None if none does or the spec refuses all.

    It tries as many of the machine's GPUs as the strategy accepts, then a half, a quarter and so on.
    """
    for name, shape in reversed(PRESETS.items()):
        for case in _cases(spec, machine, shape):
            if sum(least_parts(case).values()) > machine.table.gpu.memory_bytes:
                continue
            memory = memory_fit(case, machine)
            if memory.fits:
                return LargestPreset(preset=name, case=case, memory=memory)
    return None


def _cases(spec: StrategySpec, machine: PlannedMachine, shape: Shape) -> Iterator[Case]:
    """Yield the strategy's cases, those with the most GPUs first."""
    ranks = min(machine.gpus, spec.needs.maximum_ranks or machine.gpus)
    while ranks >= spec.needs.minimum_ranks:
        sizes = {"tensor_ranks": min(machine.table.gpus_per_node, ranks // 2)} if spec.name == "three_d" else {}
        texts = [f"{name}={size}" for name, size in sizes.items()]
        # Stages of equal FLOPs need not have equally many blocks, if a rank has one. Zero bubble refuses checkpointing.
        for more in (["checkpoint=full"], ["checkpoint=full", "balance=flops"], [], ["stages=1", "balance=flops"]):
            with suppress(Misuse):
                yield _case(spec, machine, replace(shape, batch=max(ranks, shape.batch)), ranks, [*texts, *more])
                break
        ranks //= 2


def _case(spec: StrategySpec, machine: PlannedMachine, shape: Shape, ranks: int, options: Sequence[str]) -> Case:
    """Return a case in bf16.

    Raises:
        Misuse: the spec refuses the case.
    """
    case = Case(
        strategy=spec.name,
        version=spec.version_on("cuda"),
        ranks=ranks,
        model=shape,
        device="cuda",
        backend="nccl",
        precision="bf16",
        threads=1,
        trials=1,
        steps=1,
        warm_up=0,
        trace_steps=0,
        seed=0,
        options=parse_options(spec, options),
        nodes=-(-ranks // machine.table.gpus_per_node),
        bind=True,
    )
    return check(settle(case), is_here=False)


PRESET_COLUMNS = ("strategy", "machine", "ranks", "preset", "total_bytes", "is_least")


def presets_document(specs: Sequence[StrategySpec], machine: PlannedMachine) -> list[dict[str, Any]]:
    """Return the largest preset of each strategy; only the name for a probe, and if none fits."""
    rows = []
    for spec in specs:
        largest = largest_preset(spec, machine) if spec.kind == "training" else None
        row: dict[str, Any] = dict.fromkeys(PRESET_COLUMNS)
        row |= {"strategy": spec.name, "machine": machine.name}
        if largest is not None:
            row |= {
                "ranks": largest.case.ranks,
                "preset": largest.preset,
                "total_bytes": largest.memory.total_bytes,
                "is_least": largest.memory.is_least,
            }
        rows.append(row)
    return rows


def presets_page(
    specs: Sequence[StrategySpec], machine: PlannedMachine, rows: Sequence[Mapping[str, Any]]
) -> Iterator[Block]:
    """Yield the largest preset of each strategy. rows: from `presets_document`."""
    yield machine_line(machine)
    yield ""
    cells = [
        (
            spec.name,
            str(row["ranks"] or "-"),
            row["preset"] or "-",
            f"{'at least ' if row['is_least'] else ''}{readable(row['total_bytes'], 'bytes')}",
            spec.summary,
        )
        for spec, row in zip(specs, rows, strict=True)
    ]
    columns = ("strategy", "ranks", "largest preset", "each needs", "what it is")
    yield Table(columns, cells, words=(0, 2, 4), unbroken=(0, 1, 2, 3), folds="always")
    yield ""
    yield (
        "in bf16 with checkpointing, one sequence a rank (at least 8 in all), stages of equal FLOPs where layers do not"
        " divide, and otherwise default options; other options may fit more (`observatory run STRATEGY --on MACHINE"
        " --dry-run`)"
    )
