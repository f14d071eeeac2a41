"""The logs of ranks, sorted by trial."""

from __future__ import annotations

from pathlib import Path

from bench.results.trials import join_by_labels, read_rank_logs
from collectors.metrics.probes import COPY_SECONDS
from collectors.sample_log import Ended, Note, Reading, SampleLog


def write_rank(folder: Path, rank: int, values: dict[int, float], *, broken: frozenset[int] = frozenset()) -> None:
    """One reading for each trial; trials among `broken` end with an error."""
    log = SampleLog(folder / f"rank{rank}.jsonl")
    for trial, value in values.items():
        sample = COPY_SECONDS.at(value, kind="memory_copy", size="8")
        log.write(Reading(trial=trial, time_ns=0, mark="probe", step=0, samples=[sample]))
        error = "out of luck" if trial in broken else None
        log.write(Ended(trial=trial, time_ns=1, step=1, error_type=error and "RuntimeError", error=error))
    log.close()


def test_a_trial_counts_when_every_rank_ended_well(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, {0: 1.0, 1: 1.0, 2: 1.0})
    write_rank(tmp_path, 1, {0: 2.0, 1: 2.0}, broken=frozenset({1}))
    assert list(read_rank_logs(tmp_path, 2, mark="probe").trials) == [0]


def test_a_trial_without_readings_of_the_mark_does_not_count(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, {0: 1.0})
    assert not read_rank_logs(tmp_path, 1, mark="measured").trials


def test_a_rank_without_a_log_is_named(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, {0: 1.0})
    logs = read_rank_logs(tmp_path, 2, mark="probe")
    assert logs.notes == ("rank1.jsonl is missing",)
    assert not logs.trials


def test_what_several_ranks_note_is_said_once(tmp_path: Path) -> None:
    for rank in range(2):
        write_rank(tmp_path, rank, {0: 1.0})
        log = SampleLog(tmp_path / f"rank{rank}.jsonl")
        log.write(Note(trial=0, time_ns=0, text="nothing to see"))
        log.close()
    assert read_rank_logs(tmp_path, 2, mark="probe").notes == ("nothing to see",)


def test_values_are_joined_over_the_ranks_that_have_them(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, {0: 1.0})
    write_rank(tmp_path, 1, {0: 4.0})
    (parts,) = read_rank_logs(tmp_path, 2, mark="probe").trials.values()
    assert join_by_labels(parts, "probe", COPY_SECONDS, sum) == {("memory_copy", "8"): 5.0}
