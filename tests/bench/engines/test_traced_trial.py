"""The traced window of real ranks: what it counts equals the law, and what cannot overlap does not."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.case import Case
from bench.engines.local import LocalEngine
from bench.rank.messages import TrialOrder
from bench.results.trials import Logs, Traced, read_trials
from collectors.traces.breakdown import breakdowns
from collectors.traces.timeline import load
from tests.bench.made.examples import small_case

TRACE_STEPS = 3


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    """Each test's folder is that of a run."""
    with LocalEngine(tmp_path_factory.getbasetemp()) as started:
        started.machine()
        yield started


def _run(engine: LocalEngine, folder: Path, case: Case, *, keep_trace: bool = False) -> Logs:
    order = TrialOrder(run=folder.name, trial=0, case=case, limit_s=60, keep_trace=keep_trace)
    assert engine.run(order, lambda _: None).outcome == "done"
    return read_trials(folder, case.ranks)


def _traced(logs: Logs) -> Traced:
    (trial,) = logs.trials
    assert trial.traced is not None
    return trial.traced


@pytest.mark.parametrize(
    "options",
    [{"bucket_mb": 25.0}, {"bucket_mb": 0.005}, {"overlap": False}, {"accumulate": 2}],
    ids=lambda options: "-".join(f"{name}={value}" for name, value in options.items()),
)
def test_a_rank_hands_over_as_many_bytes_as_the_law_says(
    options: dict[str, bool | int | float], engine: LocalEngine, tmp_path: Path
) -> None:
    case = small_case(options=options, trace_steps=TRACE_STEPS)
    (transfer,) = case.spec().transfers(case)
    counted = _traced(_run(engine, tmp_path, case)).payload_bytes
    assert counted == {(transfer.collective, transfer.axis): transfer.payload_bytes}


def test_the_traffic_of_each_axis_is_counted_apart(engine: LocalEngine, tmp_path: Path) -> None:
    case = small_case("hsdp", ranks=4, options={"shard_ranks": 2, "clip": 0.0}, trace_steps=TRACE_STEPS)
    expected: Counter[tuple[str, str]] = Counter()
    for transfer in case.spec().transfers(case):  # gloo reduces and scatters by an all_reduce.
        collective = "all_reduce" if transfer.collective == "reduce_scatter" else transfer.collective
        expected[collective, transfer.axis] += transfer.payload_bytes
    assert set(expected) == {("all_gather", "shard"), ("all_reduce", "shard"), ("all_reduce", "replicate")}
    assert _traced(_run(engine, tmp_path, case)).payload_bytes == expected


def test_what_a_workload_counts_itself_is_over_the_axis_of_its_card(engine: LocalEngine, tmp_path: Path) -> None:
    case = small_case("parameter_server", trace_steps=TRACE_STEPS)
    assert _traced(_run(engine, tmp_path, case)).payload_bytes.keys() == {("send", "server")}


def test_gradients_that_are_averaged_after_backward_overlap_with_nothing(engine: LocalEngine, tmp_path: Path) -> None:
    traced = _traced(_run(engine, tmp_path, small_case(options={"overlap": False}, trace_steps=TRACE_STEPS)))
    assert traced.overlap_ratio == 0
    assert traced.shares["exposed_communication"] == traced.shares["communication"] > 0


def test_the_parts_of_each_step_add_up_to_it(engine: LocalEngine, tmp_path: Path) -> None:
    _run(engine, tmp_path, small_case(trace_steps=TRACE_STEPS))
    for rank in range(2):
        found = breakdowns(load(tmp_path / f"rank{rank}.timeline.npz"))
        assert len(found) == TRACE_STEPS
        for step in found:
            assert step.exposed_communication_ns is not None
            assert step.compute_ns + step.exposed_communication_ns + step.idle_ns == step.step_ns


def test_one_rank_has_no_communication_and_says_so(engine: LocalEngine, tmp_path: Path) -> None:
    logs = _run(engine, tmp_path, small_case("single", ranks=1, trace_steps=1))
    traced = _traced(logs)
    assert traced.overlap_ratio is None
    assert "communication" not in traced.shares
    (note,) = logs.notes
    assert note.startswith("communication is absent: no communication kernels found; names seen: aten::")


@pytest.mark.slow
def test_a_trace_is_kept_where_asked(engine: LocalEngine, tmp_path: Path) -> None:
    _run(engine, tmp_path, small_case(trace_steps=1), keep_trace=True)
    assert sorted(path.name for path in tmp_path.glob("*.trace.json.gz")) == [
        "rank0.trace.json.gz",
        "rank1.trace.json.gz",
    ]
