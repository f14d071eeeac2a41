"""What real ranks look at when they are asked to comes in steps of its own, and changes no measured step."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.case import InstrumentationOptions
from bench.engines.local import LocalEngine
from bench.rank.fault_injection import Fault
from bench.rank.messages import TrialEnded, TrialOrder
from bench.report.run.summary import peaks_of
from bench.results.trials import read_trials
from collectors.metrics.metric import Sample
from collectors.metrics.rank import GRADIENT_NORM, LIVE_TENSOR_BYTES, MEASURED_MFU, TOKENS
from collectors.sample_log import Reading, read
from tests.bench.made.examples import SMALL, small_case

LOOKED_AT = small_case(steps=5, warm_up=1, trace_steps=1)
OFTEN = InstrumentationOptions(trace_every=2)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    """Each test's folder is that of a run."""
    with LocalEngine(tmp_path_factory.getbasetemp()) as started:
        started.machine()
        yield started


def _run(
    engine: LocalEngine,
    folder: Path,
    options: InstrumentationOptions,
    *,
    fault: Fault | None = None,
    ceiling_flops_per_second: float | None = None,
) -> TrialEnded:
    order = TrialOrder(
        run=folder.name,
        trial=0,
        case=LOOKED_AT,
        limit_s=60,
        instrumentation=options,
        fault=fault,
        ceiling_flops_per_second=ceiling_flops_per_second,
    )
    return engine.run(order, lambda _: None)


def _readings(folder: Path, rank: int = 0) -> list[Reading]:
    return [record for record in read(folder / f"rank{rank}.jsonl").records if isinstance(record, Reading)]


def test_windows_come_between_measured_steps_and_once_at_the_end(engine: LocalEngine, tmp_path: Path) -> None:
    assert _run(engine, tmp_path, OFTEN).outcome == "done"
    for rank in range(2):
        marks = [reading.mark for reading in _readings(tmp_path, rank)]
        between = ["measured", "measured", "traced"]
        assert marks == ["warm_up", *between, *between, "measured", "traced", "memory"]


def test_traced_steps_between_measured_ones_are_counted_nowhere_as_measured(
    engine: LocalEngine, tmp_path: Path
) -> None:
    _run(engine, tmp_path, OFTEN)
    (trial,) = read_trials(tmp_path, LOOKED_AT.ranks).trials
    assert trial.traced is not None
    measured = [reading for reading in _readings(tmp_path) if reading.mark in ("warm_up", "measured")]
    tokens = [s.value for reading in measured for s in reading.samples if s.metric == TOKENS.name]
    step_tokens = SMALL.tokens / LOOKED_AT.ranks
    assert tokens == [step_tokens * (step + 1) for step in range(LOOKED_AT.warm_up + LOOKED_AT.steps)]


def test_each_step_tells_the_gradient_norm_that_all_ranks_share(engine: LocalEngine, tmp_path: Path) -> None:
    _run(engine, tmp_path, InstrumentationOptions())
    norms = [
        [sample.value for reading in _readings(tmp_path, rank) for sample in reading.samples if _is_norm(sample)]
        for rank in range(2)
    ]
    assert len(norms[0]) == LOOKED_AT.warm_up + LOOKED_AT.steps
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)


def test_a_run_that_does_not_clip_tells_no_gradient_norm(engine: LocalEngine, tmp_path: Path) -> None:
    case = replace(LOOKED_AT, options={**LOOKED_AT.options, "clip": 0.0})
    assert engine.run(TrialOrder(run=tmp_path.name, trial=0, case=case, limit_s=60), lambda _: None).outcome == "done"
    assert not any(_is_norm(sample) for reading in _readings(tmp_path) for sample in reading.samples)


def _is_norm(sample: Sample) -> bool:
    return sample.metric == GRADIENT_NORM.name


def test_a_fault_in_a_step_of_a_window_is_committed_and_blamed(engine: LocalEngine, tmp_path: Path) -> None:
    ended = _run(engine, tmp_path, OFTEN, fault=Fault(kind="raise", rank=1, step=3))
    assert [reading.mark for reading in _readings(tmp_path)].count("measured") == 2
    assert ended.cause is not None
    assert (ended.cause.kind, ended.cause.rank, ended.cause.step) == ("error", 1, 3)


def test_memory_by_category_is_logged_and_drawn_and_what_a_cpu_lacks_is_noted(
    engine: LocalEngine, tmp_path: Path
) -> None:
    assert _run(engine, tmp_path, InstrumentationOptions(memory_snapshot=True)).outcome == "done"
    peaks = peaks_of(tmp_path, LOOKED_AT.ranks)
    weights_bytes = 4 * SMALL.parameters()
    for rank in range(2):
        assert peaks[rank]["parameters"] == weights_bytes
        assert peaks[rank]["total"] == sum(size for name, size in peaks[rank].items() if name != "total")
        drawn = json.loads(gzip.decompress((tmp_path / f"rank{rank}.memory.json.gz").read_bytes()))["traceEvents"]
        assert max(sum(event["args"].values()) for event in drawn) == peaks[rank]["total"]
    assert "the history of memory blocks is absent: no allocator keeps one on a CPU" in read_trials(tmp_path, 2).notes
    live = [sample for sample in _readings(tmp_path)[-1].samples if sample.metric == LIVE_TENSOR_BYTES.name]
    assert live != []


def test_nothing_is_looked_at_unasked(engine: LocalEngine, tmp_path: Path) -> None:
    _run(engine, tmp_path, InstrumentationOptions())
    assert peaks_of(tmp_path, LOOKED_AT.ranks) == {}
    assert list(tmp_path.glob("*.memory.*")) == []
    assert [reading.mark for reading in _readings(tmp_path)].count("traced") == 1


@pytest.mark.slow
def test_measured_steps_are_seen_as_a_share_of_a_known_ceiling(engine: LocalEngine, tmp_path: Path) -> None:
    _run(engine, tmp_path, InstrumentationOptions(), ceiling_flops_per_second=1e15)
    marks = {
        reading.mark
        for reading in _readings(tmp_path)
        if any(sample.metric == MEASURED_MFU.name for sample in reading.samples)
    }
    assert marks == {"measured"}
