"""A watched run in progress at /metrics: known by its name, with the steps of its ranks as of ranks of our own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.serve.gpu_placement import Place
from bench.serve.live.runs import RunLogs, Shown
from bench.serve.live.watched_log import WatchedLog
from bench.store import run_dir
from bench.store.active_runs import lock_folder
from bench.store.summary import series_of
from collectors.metrics import agent
from collectors.metrics.gpu import RANK_GPU
from collectors.metrics.metric import Metric
from collectors.metrics.rank import (
    DATA_WAIT_SECONDS,
    PEAK_BYTES,
    PHASE_SECONDS,
    RESERVED_BYTES,
    RESIDENT_BYTES,
    STEP_SECONDS,
    TOKENS_PER_SECOND,
)
from collectors.metrics.run_counts import STEPS
from collectors.prometheus.exposition import Owned
from collectors.sample_log import Opened
from collectors.watch.observatory_watch_still import STALL_S
from tests.bench.made.examples import make_machine
from tests.bench.results.watched.made_ranks import begin_line, made_steps, steps_line, write_lines, write_run

MADE = made_steps("ddp")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    """The folder of a watched run that a process works on; its ranks have written nothing."""
    folder = write_run(
        tmp_path / "runs" / "run", MADE, exit_code=None, watch={"end_unix_s": None, "git_commit": "5eed" * 10}
    )
    for path in folder.glob("watch_rank*"):
        path.unlink()
    run_dir.write_json(folder / "machine.json", make_machine())
    lock = lock_folder(folder)
    assert lock is not None
    yield folder
    os.close(lock)


def _append(path: Path, *lines: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines)


def _values(samples: list[Owned], name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple({**owner, **sample.labels}.values()): sample.value for sample, owner in samples if sample.metric == name
    }


def test_a_run_in_progress_has_its_name_and_its_newest_steps(running: Path) -> None:
    notices: list[str] = []
    logs = RunLogs(running.parent, on_notice=notices.append, shown=Shown())
    assert logs.read() == []  # No rank has reported.
    for rank in range(2):
        _append(running / f"watch_rank{rank}.jsonl", begin_line(rank), steps_line(MADE, rank, 0, 5))
    samples = logs.read()
    (info,) = [sample for sample, _ in samples if sample.metric == agent.RUN_INFO.name]
    assert info.labels["name"].startswith("llama-sft on 2, cpu, torch 2.13.0")
    assert info.labels["precision"] == "unknown"
    assert info.labels["commit"] == "5eed" * 10
    assert _values(samples, STEP_SECONDS.name)["0", "0"] == pytest.approx(MADE.step[0, 4] / 1e3, rel=1e-6)
    assert len(_values(samples, PHASE_SECONDS.name)) == 8
    assert _values(samples, RESIDENT_BYTES.name)["1", "0"] == 300_000_001
    _append(running / "watch_rank1.jsonl", steps_line(MADE, 1, 5, 9, tokens=[64] * 4))
    samples = logs.read()
    assert _values(samples, STEPS.name)["1", "0", "measured"] == 9
    rate = _values(samples, TOKENS_PER_SECOND.name)["1", "0"]
    assert rate == pytest.approx(64 / (MADE.step[1, 8] / 1e3), rel=1e-6)
    assert notices == []


@pytest.mark.parametrize(("device", "metric"), [("cpu", PHASE_SECONDS), ("cuda:0", DATA_WAIT_SECONDS)])
def test_the_wait_for_data_is_absent_without_a_dataloader(running: Path, device: str, metric: Metric) -> None:
    for rank, data in enumerate(({}, {"data_ns": [0] * 5})):
        line = steps_line(MADE, rank, 0, 5, **data)
        _append(running / f"watch_rank{rank}.jsonl", begin_line(rank, device=device), line)
    samples = RunLogs(running.parent, on_notice=pytest.fail, shown=Shown()).read()
    waits = [
        each for each in samples if each[0].metric == metric.name and each[0].labels.get("phase", "data") == "data"
    ]
    assert [owner["rank"] for _, owner in waits] == ["0"]


def test_a_run_has_a_limit_of_its_own_and_an_evaluation_is_progress(running: Path) -> None:
    logs = RunLogs(running.parent, on_notice=pytest.fail, shown=Shown())
    path = running / "watch_rank0.jsonl"
    _append(path, begin_line(0), steps_line(MADE, 0, 0, 40))
    samples = logs.read()
    (limit,) = _values(samples, agent.RUN_STALL_LIMIT.name).values()
    (moved,) = _values(samples, agent.RUN_LAST_PROGRESS.name).values()
    assert limit == STALL_S
    begin = begin_line(0)
    _append(path, {"kind": "active", "monotonic_ns": begin["monotonic_ns"] + 900 * 10**9})
    (later,) = _values(logs.read(), agent.RUN_LAST_PROGRESS.name).values()
    assert later - moved > 800
    assert later == pytest.approx(begin["unix_s"] + 900, rel=0, abs=0.01)
    _append(path, steps_line(MADE, 0, 40, 40) | {"first": 40, "end_ns": [1], "step_ns": [400 * 10**9]} | _NO_PHASES)
    (limit,) = _values(logs.read(), agent.RUN_STALL_LIMIT.name).values()
    assert limit == pytest.approx(800)


_NO_PHASES = {f"{name}_ns": None for name in ("data", "forward", "backward", "optimizer", "own")}


def test_a_job_that_hangs_before_its_first_line_of_steps_has_made_progress(running: Path) -> None:
    still = {"kind": "still", "unix_s": 5000.0, "still_ns": 60 * 10**9, "limit_ns": 300 * 10**9, "steps": 3}
    _append(running / "watch_rank0.jsonl", begin_line(0), still)
    samples = RunLogs(running.parent, on_notice=pytest.fail, shown=Shown()).read()
    assert list(_values(samples, agent.RUN_LAST_PROGRESS.name).values()) == [4940]


def test_the_series_in_progress_is_that_of_the_result(running: Path) -> None:
    for rank in range(2):
        _append(running / f"watch_rank{rank}.jsonl", begin_line(rank), steps_line(MADE, rank, 0, 30))
    live = run_dir.case_file(running).case
    summary = run_dir.summarise(running, "done", None)
    assert series_of(live, summary.hardware) == series_of(summary.case, summary.hardware)


def test_memory_of_the_allocator_and_the_gpu_of_a_rank_are_shown(running: Path) -> None:
    path, uuid = running / "watch_rank0.jsonl", "12345678-1234-1234-1234-123456789abc"
    line = begin_line(0, device="cuda:1", device_name="NVIDIA H100", device_uuid=f"GPU-{uuid}")
    _append(path, line, steps_line(MADE, 0, 0, 5, peak_bytes=7, reserved_bytes=8, peak_reserved_bytes=9))
    opened: list[Opened] = []

    def places_of(each: Opened) -> tuple[Place, ...]:
        opened.append(each)
        return (Place(gpu="1", memory_bytes=11),)

    logs = RunLogs(running.parent, on_notice=pytest.fail, shown=Shown(), places_of=places_of)
    samples = logs.read()
    assert list(_values(samples, PEAK_BYTES.name).values()) == [7]
    assert list(_values(samples, RESERVED_BYTES.name).values()) == [8]
    (place,) = [(sample, owner) for sample, owner in samples if sample.metric == RANK_GPU.name]
    assert place[0].labels == {"run": "run", "gpu": "1", "slice": ""}
    assert place[1] == {"rank": "0", "slot": "0"}
    assert [(each.gpu_uuid, each.pid, each.host) for each in opened] == [(uuid, 100, "node1")]
    assert logs.ranks == {("node1", "100"): ("run", "0")}


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "watch_rank0.jsonl"
    line = json.dumps(steps_line(MADE, 0, 0, 5))
    write_lines(path, [begin_line(0)])
    log = WatchedLog(path, "run", lambda line: None)
    assert len(log.newest().records) == 1
    with path.open("a") as file:
        file.write(line[:100])
    assert log.newest().steps == []
    with path.open("a") as file:
        file.write(line[100:] + "\n")
    assert [step.step for step in log.newest().steps] == [0, 1, 2, 3, 4]
    assert log.newest().records == []


@pytest.mark.parametrize(
    "changes", [{"step_ns": [-1] * 5}, {"own_ns": [1]}, {"end_ns": []}, {"rss_bytes": "much"}, {"tokens": [2**63] * 5}]
)
def test_lines_that_cannot_be_are_left_out(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "watch_rank0.jsonl"
    write_lines(path, [begin_line(0), steps_line(MADE, 0, 0, 5) | changes, "text", steps_line(MADE, 0, 5, 7)])
    newest = WatchedLog(path, "run", lambda line: None).newest()
    assert [step.step for step in newest.steps] == [5, 6]


def test_a_file_of_a_newer_version_is_given_up_once(tmp_path: Path) -> None:
    path, notices = tmp_path / "watch_rank0.jsonl", list[str]()
    write_lines(path, [begin_line(0, version=2), steps_line(MADE, 0, 0, 5)])
    log = WatchedLog(path, "run", notices.append)
    assert (log.newest().steps, log.newest().steps, len(notices)) == ([], [], 1)
    assert "version 2 is not 1" in notices[0]
