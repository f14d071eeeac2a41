"""Live series are what the logs of running runs say last, and are gone with their run."""

import dataclasses
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from bench.case import Case
from bench.serve.live.runs import RunLogs
from bench.store.run_dir import Run, begin, case_file, save, summarise
from bench.store.summary import series_of
from collectors.metrics.agent import RANK_INFO, RUN_INFO, RUN_LAST_PROGRESS
from collectors.metrics.host import HOST_LOAD
from collectors.metrics.metric import Metric, Sample
from collectors.metrics.rank import (
    ALLOCATED_BYTES,
    LIVE_TENSOR_BYTES,
    LOSS,
    MFU,
    OVERLAP_SECONDS,
    PEAK_BYTES,
    PHASE_SECONDS,
    STEP_SECONDS,
    TOKENS,
    TOKENS_PER_SECOND,
)
from collectors.metrics.run_counts import STEP_DURATION, STEPS
from collectors.sample_log import (
    SCHEMA_VERSION,
    Ended,
    Mark,
    Opened,
    Polled,
    Reading,
    Record,
    SampleLog,
    TimedAction,
    TimedActions,
)
from tests.bench.made.examples import make_machine, small_case
from tests.collectors.knocking import Notices


@pytest.fixture
def notices() -> Notices:
    return Notices()


@pytest.fixture
def live(tmp_path: Path, notices: Notices) -> RunLogs:
    return RunLogs(tmp_path, on_notice=notices)


def _begin(folder: Path, case: Case | None = None) -> Run:
    return begin(case or small_case(), make_machine(), folder)


def _write(path: Path, *records: Record) -> None:
    log = SampleLog(path)
    for record in records:
        log.write(record)
    log.close()


def _opened(run: Run, rank: int = 0, trial: int = 0) -> Opened:
    return Opened(run=run.id, trial=trial, rank=rank, time_ns=0, pid=1, host="node0")


def _reading(mark: Mark, *samples: Sample) -> Reading:
    return Reading(trial=0, time_ns=0, mark=mark, step=0, samples=list(samples))


def _step(mark: Mark, step_s: float, tokens: int) -> Reading:
    return _reading(mark, STEP_SECONDS.at(step_s), PHASE_SECONDS.at(step_s / 2, phase="data"), TOKENS.at(tokens))


def _values(live: RunLogs, metric: Metric) -> Sequence[tuple[float, dict[str, str]]]:
    return [(sample.value, {**sample.labels, **owner}) for sample, owner in live.read() if sample.metric == metric.name]


def test_each_ranks_newest_step_is_shown_with_its_rank_and_slot(tmp_path: Path, live: RunLogs) -> None:
    run = _begin(tmp_path)
    for rank in range(2):
        log = run.folder / f"rank{rank}.jsonl"
        _write(log, _opened(run, rank), _step("measured", 0.5, 8), _step("measured", 0.25 + rank, 16))
    assert _values(live, STEP_SECONDS) == [
        (0.25, {"rank": "0", "slot": "0"}),
        (1.25, {"rank": "1", "slot": "0"}),
    ]
    _write(run.folder / "rank1.jsonl", _step("measured", 0.75, 24))
    assert [value for value, _ in _values(live, STEP_SECONDS)] == [0.25, 0.75]
    assert [value for value, _ in _values(live, TOKENS)] == [16, 24]


def test_a_run_and_its_ranks_are_told_by_info(tmp_path: Path, live: RunLogs) -> None:
    run = _begin(tmp_path)
    assert [labels for _, labels in _values(live, RANK_INFO)] == []
    _write(run.folder / "rank1.jsonl", _opened(run, 1))
    series = series_of(run.case, run.machine.hardware("cpu"))
    ((value, told),) = _values(live, RUN_INFO)
    assert value == 1
    assert told.items() >= {"run": run.id, "slot": "0", "strategy": "ddp", "ranks": "2", "series": series}.items()
    assert (told["nodes"], told["device"], told["suite"], told["case"]) == ("1", "cpu", "", "")
    assert told["commit"] == "", "it is unknown"
    assert _values(live, RANK_INFO) == [(1, {"run": run.id, "host": "node0", "rank": "1", "slot": "0"})]
    assert len(series) == 12


def test_a_run_tells_the_commit_that_it_runs(tmp_path: Path, live: RunLogs) -> None:
    begin(small_case(), dataclasses.replace(make_machine(), commit="0a1b2c"), tmp_path)
    assert [labels["commit"] for _, labels in _values(live, RUN_INFO)] == ["0a1b2c"]


def test_progress_is_the_newest_step_of_any_rank_or_a_later_trial(tmp_path: Path, live: RunLogs) -> None:
    run = _begin(tmp_path)
    first, second = (run.folder / f"rank{rank}.jsonl" for rank in range(2))
    _write(first, _opened(run))
    assert _values(live, RUN_LAST_PROGRESS) == []  # The first step may be compiled.
    labels = {"run": run.id, "slot": "0"}
    _write(first, replace(_step("warm_up", 0.5, 8), time_ns=7_000_000_000))
    _write(second, _opened(run, 1), replace(_step("measured", 0.5, 8), time_ns=6_000_000_000))
    assert _values(live, RUN_LAST_PROGRESS) == [(7, labels)]
    _write(second, replace(_opened(run, 1, trial=1), time_ns=9_500_000_000))
    assert _values(live, RUN_LAST_PROGRESS) == [(9.5, labels)]


def test_warm_up_and_traced_steps_have_no_speed_but_all_else(tmp_path: Path, live: RunLogs) -> None:
    run = _begin(tmp_path)
    log = run.folder / "rank0.jsonl"
    _write(log, _opened(run), _step("warm_up", 100.0, 8))
    assert _values(live, STEP_SECONDS) == _values(live, PHASE_SECONDS) == []
    assert [value for value, _ in _values(live, TOKENS)] == [8]
    _write(log, _step("measured", 0.5, 16), _reading("traced", STEP_SECONDS.at(9.0), OVERLAP_SECONDS.at(0.125)))
    assert [value for value, _ in _values(live, STEP_SECONDS)] == [0.5]
    assert [value for value, _ in _values(live, OVERLAP_SECONDS)] == [0.125]


def test_the_last_account_of_memory_stays_until_the_next_and_no_longer_than_its_trial(
    tmp_path: Path, live: RunLogs
) -> None:
    run = _begin(tmp_path)
    log = run.folder / "rank0.jsonl"
    account = [PEAK_BYTES.at(7), ALLOCATED_BYTES.at(5)]
    _write(log, _opened(run), _reading("measured", LOSS.at(3.0), *account))
    _write(log, _reading("measured", LOSS.at(2.0)), _reading("measured", LOSS.at(1.0)))
    assert [value for value, _ in _values(live, LOSS)] == [1.0]
    assert [value for value, _ in _values(live, PEAK_BYTES)] == [7]
    _write(log, _reading("measured", LOSS.at(0.5)))
    assert [value for value, _ in _values(live, PEAK_BYTES)] == [7]
    _write(log, _opened(run, trial=1), _reading("warm_up", LOSS.at(4.0)))
    assert _values(live, PEAK_BYTES) == []


def test_timed_actions_change_no_live_series(tmp_path: Path, live: RunLogs, notices: Notices) -> None:
    run = _begin(tmp_path)
    log = run.folder / "rank0.jsonl"
    _write(log, _opened(run), _step("measured", 0.5, 16))
    before = live.read()
    actions = [TimedAction("forward", 0, 0, 1, 2)]
    _write(log, TimedActions(trial=0, time_ns=0, step=9, begun_ns=1, clock=None, actions=actions))
    assert live.read() == before
    assert notices == []


def test_a_sample_that_a_newer_step_lacks_is_gone(tmp_path: Path, live: RunLogs) -> None:
    run = _begin(tmp_path)
    log = run.folder / "rank0.jsonl"
    _write(log, _opened(run), _reading("measured", LOSS.at(2.0), TOKENS.at(8)))
    assert [value for value, _ in _values(live, LOSS)] == [2.0]
    _write(log, _reading("measured", TOKENS.at(16)))
    assert _values(live, LOSS) == []


def test_a_fresh_trial_forgets_steps_and_keeps_what_is_measured_once_a_trial(tmp_path: Path, live: RunLogs) -> None:
    run = _begin(tmp_path)
    log = run.folder / "rank0.jsonl"
    total = LIVE_TENSOR_BYTES.at(4096, category="total")
    _write(log, _opened(run), _step("measured", 0.5, 8), _reading("traced", OVERLAP_SECONDS.at(0.125)))
    _write(log, _reading("memory", total), Ended(trial=0, time_ns=0, step=3))
    assert [value for value, _ in _values(live, STEP_SECONDS)] == [0.5]
    _write(log, _opened(run, trial=1))
    assert _values(live, STEP_SECONDS) == _values(live, TOKENS) == []
    assert [value for value, _ in _values(live, OVERLAP_SECONDS)] == [0.125]
    assert [value for value, _ in _values(live, LIVE_TENSOR_BYTES)] == [4096]


def test_an_ended_run_shows_nothing_but_its_counts_any_more(tmp_path: Path, live: RunLogs, notices: Notices) -> None:
    run = _begin(tmp_path)
    _write(run.folder / "rank0.jsonl", _opened(run), _step("measured", 0.5, 8))
    assert live.read() != []
    run.close()
    counts = {STEP_DURATION.name, STEPS.name}
    assert {sample.metric for sample, _ in live.read()} == counts
    save(summarise(run.folder, "done", None))
    assert {sample.metric for sample, _ in live.read()} == counts
    assert notices == []


def test_two_runs_side_by_side_have_a_slot_each(tmp_path: Path, live: RunLogs) -> None:
    runs = [_begin(tmp_path), _begin(tmp_path)]
    for number, run in enumerate(runs):
        _write(run.folder / "rank0.jsonl", _opened(run), _step("measured", 0.5 + number, 8))
    expected = [(0.5, {"rank": "0", "slot": "0"}), (1.5, {"rank": "0", "slot": "1"})]
    assert sorted(_values(live, STEP_SECONDS), key=lambda value: value[0]) == expected
    runs[0].close()
    assert _values(live, STEP_SECONDS) == expected[1:]


def test_of_a_node_only_the_newest_beat_counts_whichever_run_polled_it(tmp_path: Path, live: RunLogs) -> None:
    runs = [_begin(tmp_path), _begin(tmp_path)]
    _write(runs[0].folder / "node0.jsonl", *(Polled(time_ns=t, samples=[HOST_LOAD.at(t)]) for t in (1, 5)))
    _write(runs[1].folder / "node0.jsonl", *(Polled(time_ns=t, samples=[HOST_LOAD.at(t)]) for t in (2, 4)))
    assert _values(live, HOST_LOAD) == [(5, {})]


def test_a_log_of_a_newer_version_is_said_and_the_others_are_shown(
    tmp_path: Path, live: RunLogs, notices: Notices
) -> None:
    run = _begin(tmp_path)
    _write(run.folder / "rank0.jsonl", msgspec.structs.replace(_opened(run), schema_version=SCHEMA_VERSION + 1))
    _write(run.folder / "rank1.jsonl", _opened(run, 1), _step("measured", 0.5, 8))
    for _ in range(2):
        assert [labels["rank"] for _, labels in _values(live, STEP_SECONDS)] == ["1"]
        _write(run.folder / "rank0.jsonl", _step("measured", 0.25, 8))
    assert len(notices) == 1
    assert f"rank0.jsonl: written with schema version {SCHEMA_VERSION + 1}" in notices[0]


def test_a_line_cut_in_the_middle_is_said_once_and_the_rest_is_shown(
    tmp_path: Path, live: RunLogs, notices: Notices
) -> None:
    run = _begin(tmp_path)
    log = run.folder / "rank0.jsonl"
    _write(log, _opened(run), _step("measured", 0.5, 8))
    log.write_bytes(log.read_bytes()[:-20])
    assert _values(live, STEP_SECONDS) == []
    _write(log, _step("measured", 0.25, 16))
    for _ in range(2):
        assert [value for value, _ in _values(live, STEP_SECONDS)] == [0.25]
    assert len(notices) == 1
    assert notices[0].startswith(f"{run.folder}/rank0.jsonl: line 2 cannot be read")


def test_a_run_folder_deleted_while_it_is_served_is_said_and_gone(
    tmp_path: Path, live: RunLogs, notices: Notices
) -> None:
    run, other = _begin(tmp_path), _begin(tmp_path)
    for one in (run, other):
        _write(one.folder / "rank0.jsonl", _opened(one), _step("measured", 0.5, 8))
    assert len(_values(live, STEP_SECONDS)) == 2
    shutil.rmtree(run.folder)
    for _ in range(2):
        assert _values(live, STEP_SECONDS) == [(0.5, {"rank": "0", "slot": "1"})]
    assert notices == [f"{run.folder} was deleted while its run was active: its series are no longer shown"]


def test_a_run_that_cannot_be_read_is_said_once_and_the_others_are_shown(
    tmp_path: Path, live: RunLogs, notices: Notices
) -> None:
    broken, newer, good = (_begin(tmp_path) for _ in range(3))
    (broken.folder / "case.json").write_text("{")
    file = msgspec.structs.replace(case_file(newer.folder), schema_version=99)
    (newer.folder / "case.json").write_bytes(msgspec.json.encode(file))
    for _ in range(2):
        assert [labels["run"] for _, labels in _values(live, RUN_INFO)] == [good.id]
    assert len(notices) == 2
    assert any("schema version 99 is newer" in notice for notice in notices)


def test_a_folder_of_runs_that_is_not_there_yet_is_empty(tmp_path: Path, notices: Notices) -> None:
    live = RunLogs(tmp_path / "later", on_notice=notices)
    assert live.read() == []
    run = _begin(tmp_path / "later")
    assert [labels["run"] for _, labels in _values(live, RUN_INFO)] == [run.id]
    assert notices == []


def test_series_are_named_after_what_is_comparable() -> None:
    assert series_of(small_case(seed=1, steps=7), "a CPU") == series_of(small_case(), "a CPU")
    assert series_of(small_case(precision="bf16"), "a CPU") != series_of(small_case(), "a CPU")
    assert series_of(small_case(), "another CPU") != series_of(small_case(), "a CPU")


def test_a_clock_that_was_set_back_does_not_bring_old_beats_back(tmp_path: Path, live: RunLogs) -> None:
    runs = [_begin(tmp_path), _begin(tmp_path)]
    _write(runs[0].folder / "node0.jsonl", Polled(time_ns=7200, samples=[HOST_LOAD.at(1)]))
    assert _values(live, HOST_LOAD) == [(1, {})]
    _write(runs[1].folder / "node0.jsonl", Polled(time_ns=3600, samples=[HOST_LOAD.at(2)]))
    assert _values(live, HOST_LOAD) == [(2, {})]


def test_a_folder_that_cannot_be_read_hides_no_other(tmp_path: Path, live: RunLogs) -> None:
    (tmp_path / "20200101-000000-broken" / "case.json").mkdir(parents=True)
    run = _begin(tmp_path)
    _write(run.folder / "rank0.jsonl", _opened(run), _step("measured", 0.5, 8))
    assert [value for value, _ in _values(live, STEP_SECONDS)] == [0.5]


def test_the_last_line_is_the_newest_even_when_the_clock_jumped_back(tmp_path: Path, live: RunLogs) -> None:
    run = _begin(tmp_path)
    for step_s, time_ns in ((0.25, 9_000), (0.5, 5)):
        reading = msgspec.structs.replace(_step("measured", step_s, 8), time_ns=time_ns)
        _write(run.folder / "rank0.jsonl", reading)
        _write(run.folder / "node0.jsonl", Polled(time_ns=time_ns, samples=[HOST_LOAD.at(step_s)]))
    assert [value for value, _ in _values(live, STEP_SECONDS)] == [0.5]
    assert _values(live, HOST_LOAD) == [(0.5, {})]


def test_the_rates_of_a_step_are_speed_which_only_measured_steps_have(tmp_path: Path, live: RunLogs) -> None:
    run = _begin(tmp_path)
    rates = (TOKENS_PER_SECOND.at(100.0), MFU.at(0.5))
    _write(run.folder / "rank0.jsonl", _opened(run), _reading("traced", *rates), _reading("warm_up", *rates))
    assert _values(live, TOKENS_PER_SECOND) == _values(live, MFU) == []
    _write(run.folder / "rank0.jsonl", _reading("measured", *rates))
    assert [value for value, _ in _values(live, MFU)] == [0.5]


@pytest.fixture(scope="module")
def opened() -> list[str]:
    """The names of the logs that this process opens from now on; a hook cannot be removed again, so there is one."""
    names: list[str] = []

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and str(arguments[0]).endswith(".jsonl"):
            names.append(Path(str(arguments[0])).name)

    sys.addaudithook(note)
    return names


def test_of_a_large_run_a_look_opens_the_logs_that_are_here_and_have_grown(
    tmp_path: Path, live: RunLogs, opened: list[str]
) -> None:
    def look() -> list[str]:
        opened.clear()
        live.read()
        return list(opened)

    run = begin(dataclasses.replace(small_case(), ranks=4096), make_machine(), tmp_path)
    ranks = range(16, 24)  # Those of the third node of 8.
    for rank in ranks:
        _write(run.folder / f"rank{rank}.jsonl", _opened(run, rank), _step("measured", 0.5, 8))
    _write(run.folder / "rank4096.jsonl", _opened(run, 4096))  # The run has no such rank.
    assert look() == [f"rank{rank}.jsonl" for rank in ranks]
    assert look() == []
    _write(run.folder / "rank17.jsonl", _step("measured", 0.75, 16))
    assert look() == ["rank17.jsonl"]
    assert [labels["rank"] for _, labels in _values(live, STEP_SECONDS)] == [str(rank) for rank in ranks]
    assert [value for value, _ in _values(live, STEP_SECONDS)] == [0.5, 0.75, *[0.5] * 6]
