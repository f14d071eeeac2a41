"""The logs of a trial's ranks become one value per metric; the wait of a host for data is kept apart from phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.results.results import results_of
from bench.results.trials import read_trials
from collectors.metrics.metric import Sample
from collectors.metrics.rank import (
    DATA_WAIT_SECONDS,
    LIVE_TENSOR_BYTES,
    OBSERVER_SECONDS,
    PHASE_SECONDS,
    STEP_SECONDS,
)
from collectors.metrics.results import RUN_DATA_WAIT_SECONDS, RUN_PHASE_SECONDS
from collectors.sample_log import Ended, Reading, SampleLog
from tests.bench.made.examples import small_case
from workloads.cost_models.absent import Absent


def write_steps(
    folder: Path, rank: int, waits_s: Sequence[float | None], live_bytes: Mapping[str, float] | None = None
) -> None:
    """A measured step of 1 s for each wait; None is of a clock that keeps none. live_bytes: at the peak."""
    log = SampleLog(folder / f"rank{rank}.jsonl")
    for step, wait_s in enumerate(waits_s):
        samples: list[Sample] = [
            STEP_SECONDS.at(1.0),
            OBSERVER_SECONDS.at(0.001),
            PHASE_SECONDS.at(0.001, phase="data"),
            PHASE_SECONDS.at(0.9, phase="forward"),
        ]
        if wait_s is not None:
            samples.append(DATA_WAIT_SECONDS.at(wait_s))
        log.write(Reading(trial=0, time_ns=0, mark="measured", step=step, samples=samples))
    if live_bytes is not None:
        live = [LIVE_TENSOR_BYTES.at(size, category=name) for name, size in live_bytes.items()]
        log.write(Reading(trial=0, time_ns=0, mark="memory", step=len(waits_s), samples=live))
    log.write(Ended(trial=0, time_ns=1, step=len(waits_s)))
    log.close()


def test_the_hosts_wait_for_data_is_the_mean_step_of_the_rank_that_waited_most(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, (0.1, 0.3))
    write_steps(tmp_path, 1, (0.4, 0.6))
    trials = read_trials(tmp_path, 2).trials
    assert [trial.data_wait_s for trial in trials] == pytest.approx([0.5])
    found, _ = results_of(replace(small_case(), trials=1), trials, Absent(reason="none is asked for"))
    (wait,) = (one for one in found if one.metric == RUN_DATA_WAIT_SECONDS.name)
    assert wait.median == pytest.approx(0.5)
    phases_s = {one.labels["phase"]: one.median for one in found if one.metric == RUN_PHASE_SECONDS.name}
    assert phases_s == pytest.approx({"data": 0.001, "forward": 0.9})


def test_ranks_on_a_cpu_have_no_wait_beside_the_phase(tmp_path: Path) -> None:
    for rank in range(2):
        write_steps(tmp_path, rank, (None, None))
    trials = read_trials(tmp_path, 2).trials
    assert [trial.data_wait_s for trial in trials] == [None]
    found, _ = results_of(replace(small_case(), trials=1), trials, Absent(reason="none is asked for"))
    assert not [one for one in found if one.metric == RUN_DATA_WAIT_SECONDS.name]


def test_activations_are_those_of_the_rank_whose_peak_is_highest_in_all(tmp_path: Path) -> None:
    """As the law has them: a later stage may hold more activations, and less in all."""
    write_steps(tmp_path, 0, (None,), {"activations": 5.0, "other": 2.0, "total": 12.0})
    write_steps(tmp_path, 1, (None,), {"activations": 6.0, "other": 3.0, "total": 11.0})
    (trial,) = read_trials(tmp_path, 2).trials
    assert (trial.activation_bytes, trial.other_bytes) == (5.0, 2.0)
    assert trial.peak_bytes["live_tensors"] == 12.0
