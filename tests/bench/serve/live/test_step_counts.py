"""Each step of a live run is counted once, and the histogram of their times has the quantiles that they have."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles

import pytest

from bench.case import Case
from bench.serve.live.runs import ENDED_S, RunLogs
from bench.serve.live.step_counts import LONGEST_EXEMPLAR
from bench.store.run_dir import Run, begin
from collectors.metrics.rank import STEP_SECONDS
from collectors.metrics.run_counts import STEP_DURATION, STEPS
from collectors.prometheus.exposition import BOUNDS_S, Histogram
from collectors.sample_log import Mark, Opened, Reading, Record, SampleLog
from tests.bench.made.examples import make_case, make_machine, small_case

SECOND = 1_000_000_000


class Clock:
    """Stands until the test moves it."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def notices() -> list[str]:
    return []


@pytest.fixture
def live(tmp_path: Path, notices: list[str], clock: Clock) -> RunLogs:
    return RunLogs(tmp_path, on_notice=notices.append, clock_ns=clock)


def _begin(folder: Path, case: Case | None = None, name: str | None = None) -> Run:
    return begin(case or small_case(), make_machine(), folder, name=name)


def _write(run: Run, rank: int, *records: Record) -> None:
    log = SampleLog(run.folder / f"rank{rank}.jsonl")
    for record in records:
        log.write(record)
    log.close()


def _opened(run: Run, rank: int = 0, trial: int = 0) -> Opened:
    return Opened(run=run.id, trial=trial, rank=rank, time_ns=0, pid=1, host="node0")


def _step(mark: Mark, step: int, step_s: float, *, trial: int = 0, time_ns: int = 0) -> Reading:
    return Reading(trial=trial, time_ns=time_ns, mark=mark, step=step, samples=[STEP_SECONDS.at(step_s)])


def _measured(*step_s: float) -> Sequence[Reading]:
    return [_step("measured", step, one) for step, one in enumerate(step_s)]


def _histograms(live: RunLogs) -> dict[str, Histogram]:
    """By slot."""
    found = [sample for sample, _ in live.read() if sample.metric == STEP_DURATION.name]
    assert all(isinstance(one, Histogram) for one in found)
    return {one.labels["slot"]: one for one in found if isinstance(one, Histogram)}


def _filled(histogram: Histogram) -> dict[float, int]:
    """How many steps are in each bucket that has any, by its upper bound."""
    return {BOUNDS_S[place]: count for place, count in enumerate(histogram.counts) if count}


def _steps(live: RunLogs) -> dict[tuple[str, str], float]:
    """By rank and mark."""
    return {
        (owner["rank"], sample.labels["mark"]): sample.value
        for sample, owner in live.read()
        if sample.metric == STEPS.name
    }


def test_every_measured_step_of_all_ranks_is_in_the_histogram_and_no_other(tmp_path: Path, live: RunLogs) -> None:
    run = _begin(tmp_path)
    _write(run, 0, _opened(run), _step("warm_up", 0, 64.0), *_measured(0.5, 0.5, 1.0), _step("traced", 4, 32.0))
    _write(run, 1, _opened(run, 1), _step("warm_up", 0, 64.0), *_measured(2.0))
    histogram = _histograms(live)["0"]
    assert _filled(histogram) == {0.5: 2, 1.0: 1, 2.0: 1}
    assert (histogram.value, histogram.total) == (4, 4.0)


def test_looks_count_on_and_count_nothing_twice(tmp_path: Path, live: RunLogs) -> None:
    run = _begin(tmp_path)
    _write(run, 0, _opened(run))
    counts = [_histograms(live)["0"].value]
    for _ in range(2):
        _write(run, 0, *_measured(0.5, 0.25, 0.5))
        counts += [_histograms(live)["0"].value, _histograms(live)["0"].value]
    _write(run, 0, _opened(run, trial=1), _step("measured", 0, 0.5, trial=1))
    assert [*counts, _histograms(live)["0"].value] == [0, 3, 3, 6, 6, 7]


def test_steps_done_are_counted_by_rank_and_mark_over_all_trials(tmp_path: Path, live: RunLogs) -> None:
    run = _begin(tmp_path)
    assert _steps(live) == {}
    _write(run, 0, _opened(run), _step("warm_up", 0, 1.0), *_measured(0.5, 0.5), _step("traced", 3, 1.0))
    assert _steps(live) == {("0", "warm_up"): 1, ("0", "measured"): 2}
    _write(run, 0, _opened(run, trial=1), _step("warm_up", 0, 1.0, trial=1), *_measured(0.5))
    _write(run, 1, _opened(run, 1))
    assert _steps(live) == {
        ("0", "warm_up"): 2,
        ("0", "measured"): 3,
        ("1", "warm_up"): 0,
        ("1", "measured"): 0,
    }


def test_an_exporter_that_starts_late_counts_from_the_runs_begin(tmp_path: Path, live: RunLogs) -> None:
    run = _begin(tmp_path)
    _write(run, 0, _opened(run), *_measured(*[0.5] * 50))
    live.read()
    _write(run, 0, *_measured(*[0.25] * 50))
    late = RunLogs(tmp_path, on_notice=pytest.fail)
    assert _histograms(late) == _histograms(live)
    assert _steps(late)["0", "measured"] == 100


def test_an_exemplar_is_the_newest_step_of_its_bucket_by_run_trial_rank_and_step(tmp_path: Path, live: RunLogs) -> None:
    run = _begin(tmp_path)
    _write(run, 0, _opened(run), _step("measured", 3, 0.5, time_ns=10), _step("measured", 4, 0.49, time_ns=30))
    _write(run, 1, _opened(run, 1), _step("measured", 3, 0.48, time_ns=20), _step("measured", 7, 9.0, time_ns=40))
    exemplars = _histograms(live)["0"].exemplars
    assert {bucket: (one.value, one.time_ns) for bucket, one in exemplars.items()} == {18: (0.49, 30), 27: (9.0, 40)}
    assert exemplars[18].labels == {"run": run.id, "trial": "0", "rank": "0", "step": "4"}
    assert exemplars[27].labels == {"run": run.id, "trial": "0", "rank": "1", "step": "7"}


@pytest.mark.parametrize(("letters", "is_shown"), [(109, True), (110, False)])
def test_a_name_that_leaves_no_room_makes_no_exemplar_and_is_said(
    letters: int, is_shown: bool, tmp_path: Path, live: RunLogs, notices: list[str]
) -> None:
    assert letters == LONGEST_EXEMPLAR - len("runtrial0rank0step3") + (0 if is_shown else 1)
    run = _begin(tmp_path, name="x" * letters)
    _write(run, 0, _opened(run), *(_step("measured", 3, 0.5) for _ in range(5)))
    histogram = _histograms(live)["0"]
    assert (histogram.value, bool(histogram.exemplars)) == (5, is_shown)
    assert [notice.endswith("its name is too long for exemplars; its histogram has none") for notice in notices] == (
        [] if is_shown else [True]
    )


def test_what_was_logged_after_the_last_look_is_counted_when_the_run_has_ended(
    tmp_path: Path, live: RunLogs, clock: Clock
) -> None:
    run = _begin(tmp_path)
    _write(run, 0, _opened(run), *_measured(0.5))
    live.read()
    _write(run, 0, *_measured(0.5, 0.25))
    run.close()
    assert (_histograms(live)["0"].value, _steps(live)["0", "measured"]) == (3, 3)
    clock.now += round(ENDED_S * SECOND)
    assert _histograms(live)["0"].value == 3
    clock.now += 1
    assert live.read() == []


def test_the_next_run_of_a_slot_begins_anew_at_zero(tmp_path: Path, live: RunLogs) -> None:
    first = _begin(tmp_path)
    _write(first, 0, _opened(first), *_measured(0.5, 0.5))
    live.read()
    first.close()
    second = _begin(tmp_path)
    assert (first.slot, second.slot) == (0, 0)
    assert _histograms(live) == {}  # Neither the old run's, whose slot is taken, nor the new one's, without a rank.
    _write(second, 0, _opened(second))
    assert _histograms(live)["0"].value == 0
    _write(second, 0, *_measured(0.25))
    assert _filled(_histograms(live)["0"]) == {0.25: 1}


def test_two_runs_side_by_side_have_a_histogram_each(tmp_path: Path, live: RunLogs) -> None:
    for step_s in (0.5, 0.25):
        run = _begin(tmp_path)
        _write(run, 0, _opened(run), *_measured(step_s))
    assert {slot: _filled(one) for slot, one in _histograms(live).items()} == {"0": {0.5: 1}, "1": {0.25: 1}}


def test_a_log_that_became_shorter_is_counted_anew(tmp_path: Path, live: RunLogs) -> None:
    run = _begin(tmp_path)
    for rank in range(2):
        _write(run, rank, _opened(run, rank), *_measured(0.5, 0.5, 0.5))
    assert _histograms(live)["0"].value == 6
    log = run.folder / "rank0.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:2]))
    assert _histograms(live)["0"].value == 4
    assert _steps(live)["0", "measured"] == 1


def test_a_run_whose_folder_is_deleted_leaves_no_counts(tmp_path: Path, live: RunLogs) -> None:
    run = _begin(tmp_path)
    _write(run, 0, _opened(run), *_measured(0.5))
    assert _histograms(live)
    shutil.rmtree(run.folder)
    assert live.read() == []


def test_a_step_without_a_true_time_is_counted_and_in_no_histogram_which_is_said(
    tmp_path: Path, live: RunLogs, notices: list[str]
) -> None:
    run = _begin(tmp_path)
    _write(run, 0, _opened(run), *_measured(-1.0, 0.5))
    assert _histograms(live)["0"].value == 1
    assert _steps(live)["0", "measured"] == 2
    assert notices == [f"run {run.id}: step 0 of rank 0 is in no histogram: -1.0 is no duration"]


def test_a_probe_has_neither_steps_nor_a_histogram(tmp_path: Path, live: RunLogs) -> None:
    run = _begin(tmp_path, make_case(strategy="matmul", ranks=1))
    _write(run, 0, _opened(run), Reading(trial=0, time_ns=0, mark="probe", step=0, samples=[]))
    assert not {sample.metric for sample, _ in live.read()} & {STEP_DURATION.name, STEPS.name}


@pytest.mark.parametrize("percent", [50, 99])
def test_a_quantile_of_ten_thousand_logged_steps_is_in_the_bucket_that_prometheus_would_name(
    percent: int, tmp_path: Path, live: RunLogs
) -> None:
    random_ = random.Random(11)
    times = [random_.lognormvariate(math.log(0.12), 0.25) for _ in range(10_000)]
    run = _begin(tmp_path)
    log = SampleLog(run.folder / "rank0.jsonl")
    log.write(_opened(run))
    for step, step_s in enumerate(times):
        log.write(_step("measured", step, step_s))
        if step % 500 == 0:
            live.read()
    log.close()
    counts = _histograms(live)["0"].cumulative()
    place = next(place for place, count in enumerate(counts) if count >= percent * 100)
    assert counts[-1] == 10_000
    assert BOUNDS_S[place - 1] <= quantiles(times, n=100)[percent - 1] <= BOUNDS_S[place]
