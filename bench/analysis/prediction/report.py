"""Reports the predicted memory and step of a case on a remote machine, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bench.analysis.prediction.fit import Fit
from bench.analysis.prediction.memory import OFFLOADED, MemoryFit, memory_fit
from bench.analysis.prediction.nearest import MOST_RANKS, nearest_fit
from bench.case import Case
from bench.machine.machines.machine_file import PlannedMachine
from bench.report.format import readable
from bench.report.table import Block, Table
from workloads.cost_models.absent import Absent


def fit_page(predicted: Fit) -> Iterator[Block]:
    """Yield memory by part, bytes by collective and level, the step, and its basis."""
    yield from _memory(predicted)
    if predicted.traffic:
        yield ""
        yield f"bytes of a step, a rank of {predicted.case.title}"
        rows = [
            (
                row.collective,
                row.axis,
                row.level or "-",
                readable(row.payload_bytes, "bytes"),
                f"{row.calls:,}",
                time_words(row.elapsed_s),
            )
            for row in predicted.traffic
        ]
        yield Table(("collective", "over", "crosses", "payload", "calls", "takes"), rows, words=(0, 1, 2), keys=2)
    if predicted.case.model is None:
        return
    yield ""
    yield from step_lines(predicted)
    yield from (f"rests on {line}" for line in predicted.rests_on)


def memory_blocks(memory: MemoryFit) -> Iterator[Block]:
    """Yield the memory of the rank that holds most, by part."""
    least = "at least " if memory.is_least else ""
    yield (
        f"the rank that holds most needs {least}{readable(memory.total_bytes, 'bytes')} of"
        f" {readable(memory.room_bytes, 'bytes')}: {memory.basis}"
    )
    rows = [
        (name, readable(size, "bytes"), readable(size / memory.total_bytes, "ratio"))
        for name, size in memory.parts.items()
    ]
    yield Table(("part", "bytes", "share"), rows, keys=1)


def _memory(predicted: Fit) -> Iterator[Block]:
    yield from memory_blocks(predicted.memory)
    if (without := without_checkpointing(predicted)) is not None:
        yield f"without checkpointing it would need {readable(without, 'bytes')}"
    yield verdict_line(predicted)


def verdict_line(predicted: Fit) -> str:
    """Return whether the case fits; if not, which part is too large, and the nearest setup that fits."""
    return verdict_words(predicted.case, predicted.memory, predicted.machine)


def verdict_words(case: Case, memory: MemoryFit, machine: PlannedMachine) -> str:
    """Return the words of `verdict_line` for a case on a machine."""
    if memory.fits:
        return "the predicted parts fit" if memory.is_least else "it fits"
    nearest = nearest_fit(case, machine)
    line = f"it does not fit: {_too_much(memory)}"
    if nearest is None and case.model is None:
        return f"{line}; use smaller sizes (`observatory list {case.strategy}` shows the options)"
    if nearest is None:
        return (
            f"{line}; none of the setups that were tried fits, up to {MOST_RANKS:,} ranks: use a smaller --shape,"
            " --batch or --sequence"
        )
    least = "at least " if nearest.memory.is_least else ""
    return f"{line}; with {nearest.words} it needs {least}{readable(nearest.memory.total_bytes, 'bytes')}"


def _too_much(memory: MemoryFit) -> str:
    assert memory.too_much is not None, "it does not fit"
    part, size = memory.too_much
    room = readable(memory.room_bytes, "bytes")
    if part == OFFLOADED:
        return f"{part}: {readable(size, 'bytes')} of its {readable(memory.host_room_bytes, 'bytes')}"
    if part not in memory.parts:
        return f"{part}: {readable(size, 'bytes')} of the {room} of a GPU"
    total = readable(memory.total_bytes, "bytes")
    return f"{total} of the {room} of a GPU, {readable(size, 'bytes')} of it {part}"


def without_checkpointing(predicted: Fit) -> int | None:
    """Return the bytes without checkpointing; None if the case has none, or if they are not predicted."""
    case = predicted.case
    if case.options.get("checkpoint", "none") == "none":
        return None
    memory = memory_fit(replace(case, options={**case.options, "checkpoint": "none"}), predicted.machine)
    return None if memory.is_least else memory.total_bytes


def step_lines(predicted: Fit) -> Iterator[str]:
    """Yield the expected step and its MFU, or why they are absent."""
    step, ratio = predicted.step, predicted.mfu
    if isinstance(step, Absent):
        yield f"expected step: absent: {step.reason}"
        return
    tokens = predicted.case.shape.tokens / step.step_s
    bubble = f"a bubble of {time_words(step.bubble_s)}, " if step.bubble_s else ""
    optimizer = f"an optimizer of {time_words(step.compute.optimizer_s)}, " if step.compute.optimizer_s else ""
    host = f"the host {time_words(step.compute.host_s)}, " if step.compute.host_s else ""
    compute_s = step.compute.forward_s + step.compute.backward_s - step.compute.host_s
    computing, exposed, sent = map(time_words, (compute_s, step.exposed_s, step.communication_s))
    # A rank of a pipeline also waits for messages between other ranks.
    what = f"{sent} in all" if step.exposed_s <= step.communication_s else f"a rank's own takes {sent}"
    yield (
        f"expected step: {time_words(step.step_s)}, {tokens:,.0f} tokens/s: computing {computing}, {host}{optimizer}"
        f"{bubble}and {exposed} of exposed communication ({what})"
    )
    shown = f"absent: {ratio.reason}" if isinstance(ratio, Absent) else readable(ratio, "ratio")
    yield f"expected MFU: {shown}"


FIGURES = ("ranks", "nodes", "total_bytes", "is_least", "fits", "step_s", "mfu")


def figures(predicted: Fit | None) -> dict[str, Any]:
    """Return the figures of a case as a row; each is None if `predicted` is None, because the case cannot run there."""
    if predicted is None:
        return dict.fromkeys(FIGURES)
    step, ratio = predicted.step, predicted.mfu
    return {
        "ranks": predicted.case.ranks,
        "nodes": predicted.case.nodes,
        "total_bytes": predicted.memory.total_bytes,
        "is_least": predicted.memory.is_least,
        "fits": predicted.memory.fits,
        "step_s": None if isinstance(step, Absent) else step.step_s,
        "mfu": None if isinstance(ratio, Absent) else ratio,
    }


def fit_document(predicted: Fit) -> dict[str, Any]:
    memory, step = predicted.memory, predicted.step
    nearest = None if memory.fits else nearest_fit(predicted.case, predicted.machine)
    return {
        "machine": {"name": predicted.machine.name, **_machine(predicted)},
        "memory": {
            "parts": dict(memory.parts),
            "total_bytes": memory.total_bytes,
            "room_bytes": memory.room_bytes,
            "is_least": memory.is_least,
            "fits": memory.fits,
            "basis": memory.basis,
            "too_much": None if memory.too_much is None else memory.too_much[0],
            "without_checkpointing_bytes": without_checkpointing(predicted) if predicted.case.model else None,
        },
        "nearest": None
        if nearest is None
        else {"words": nearest.words, "case": nearest.case, "total_bytes": nearest.memory.total_bytes},
        "traffic": predicted.traffic,
        "step": step,
        "step_s": None if isinstance(step, Absent) else step.step_s,
        "mfu": predicted.mfu,
        "rests_on": predicted.rests_on,
    }


def _machine(predicted: Fit) -> dict[str, Any]:
    table = predicted.machine.table
    return {
        "description": table.description,
        "gpu": table.gpu.name,
        "memory_bytes": table.gpu.memory_bytes,
        "gpus_per_node": table.gpus_per_node,
        "nodes": table.nodes,
    }


def time_words(elapsed_s: float) -> str:
    """Return a time in a fitting unit: "8.9 s", "31.7 ms"."""
    return readable(1e9 * elapsed_s, "ns")


def machine_line(machine: PlannedMachine) -> str:
    memory = readable(machine.table.gpu.memory_bytes, "bytes")
    return f"{machine.name}: {machine.words}, {memory} each by torch; this host is not queried"
