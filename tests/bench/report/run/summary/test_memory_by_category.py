"""What filled the memory is said of the rank that held most, the largest part first."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from bench.report.run.summary import peaks_of, show_memory
from collectors.metrics.rank import TIMELINE_PEAK_BYTES
from collectors.sample_log import Ended, Opened, Reading, SampleLog
from tests.bench.made.examples import make_case, make_summary

MIB = 2**20


def log_peak(folder: Path, rank: int, trial: int = 0, **held_bytes: int) -> None:
    samples = [TIMELINE_PEAK_BYTES.at(size, category=name) for name, size in held_bytes.items()]
    samples += [TIMELINE_PEAK_BYTES.at(sum(held_bytes.values()), category="total")] if held_bytes else []
    log = SampleLog(folder / f"rank{rank}.jsonl")
    log.write(Opened(run="r", trial=trial, rank=rank, time_ns=0, pid=1, host="h"))
    log.write(Reading(trial=trial, time_ns=0, mark="memory", step=3, samples=samples))
    log.write(Ended(trial=trial, time_ns=0, step=3))
    log.close()


def shown(folder: Path) -> str:
    text = io.StringIO()
    show_memory(make_summary(case=make_case(), folder=str(folder)), Console(file=text, width=40))
    return text.getvalue()


def test_the_rank_that_held_most_is_shown_with_its_largest_part_first(tmp_path: Path) -> None:
    log_peak(tmp_path, 0, parameters=2 * MIB)
    log_peak(tmp_path, 1, parameters=MIB, activations=3 * MIB)
    assert shown(tmp_path) == (
        "\nddp on 2: peak of rank 1: 4.00 MiB in a step: activations 3.00 MiB (75.0 %), parameters 1.00 MiB (25.0 %)\n"
    )


def test_the_files_of_that_rank_are_named_with_what_opens_them(tmp_path: Path) -> None:
    for rank, size in ((0, 2 * MIB), (1, MIB)):
        log_peak(tmp_path, rank, parameters=size)
        (tmp_path / f"rank{rank}.memory.json.gz").touch()
    assert shown(tmp_path).splitlines()[2:] == ["rank0.memory.json.gz in the run's folder opens in ui.perfetto.dev"]


def test_the_last_completed_trial_counts(tmp_path: Path) -> None:
    for rank in range(2):
        log_peak(tmp_path, rank, trial=0, parameters=9 * MIB)
        log_peak(tmp_path, rank, trial=1, parameters=MIB)
    log_peak(tmp_path, 0, trial=2, parameters=7 * MIB)  # Rank 1 never came to it.
    assert peaks_of(tmp_path, 2) == {rank: {"parameters": MIB, "total": MIB} for rank in range(2)}


def test_nothing_is_said_where_no_rank_could_tell(tmp_path: Path) -> None:
    for rank in range(2):
        log_peak(tmp_path, rank)
    assert shown(tmp_path) == ""


def test_nothing_is_said_where_no_trial_was_completed(tmp_path: Path) -> None:
    assert shown(tmp_path) == ""
