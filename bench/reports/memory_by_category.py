"""The memory of one step by category, on a terminal: of the rank that held most at its peak."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.text import Text

from bench.judgement.rank_logs import by_labels, read_rank_logs
from bench.reports.console import open_console
from bench.reports.digits import digits
from bench.summary import Summary
from collectors.catalogue.memory import TIMELINE_PEAK_BYTES

MIB = 2.0**20
DRAWN_BY = {"memory.json.gz": "ui.perfetto.dev", "memory.pickle": "pytorch.org/memory_viz"}
"""What a rank's files of its memory end with, and what draws them."""


def show_memory(summary: Summary, console: Console | None = None) -> None:
    """Print what filled the memory of the last trial that was completed; nothing where no rank could tell."""
    peaks = peaks_of(Path(summary.folder), summary.case.ranks)
    if not peaks:
        return
    rank = max(peaks, key=lambda rank: peaks[rank]["total"])
    held = dict(peaks[rank])
    total = held.pop("total")
    parts = [f"{name} {digits(size / MIB)} MiB ({100 * size / total:.1f} %)" for name, size in _largest_first(held)]
    line = f"{summary.case.strategy} on {summary.case.ranks}: peak of rank {rank}: {digits(total / MIB)} MiB in a step:"
    console = console or open_console()
    console.print()
    console.print(Text(f"{line} {', '.join(parts)}"), soft_wrap=True)
    for ending, opens_in in DRAWN_BY.items():
        if (Path(summary.folder) / f"rank{rank}.{ending}").exists():
            console.print(Text(f"rank{rank}.{ending} in the run's folder opens in {opens_in}"), soft_wrap=True)


def peaks_of(folder: Path, ranks: int) -> dict[int, dict[str, float]]:
    """Bytes by category, and their total, of each rank that told them in the last completed trial.

    Raises:
        NewerSchema: a newer version wrote the logs.
    """
    trials = read_rank_logs(folder, ranks, mark="memory").trials
    if not trials:
        return {}
    told = {
        rank: by_labels([part], "memory", TIMELINE_PEAK_BYTES, max) for rank, part in enumerate(trials[max(trials)])
    }
    return {rank: {name: size for (name,), size in found.items()} for rank, found in told.items() if found}


def _largest_first(held: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(held.items(), key=lambda part: -part[1])
