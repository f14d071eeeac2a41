"""What logs of a run's folder add to its diagnosis: load of nodes, GPUs held back, retries of an allocator."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bench.analysis.diagnose.observed import AllocatorTrouble
from bench.analysis.diagnose.observing import observe
from bench.analysis.diagnose.rule import diagnose
from bench.errors import Misuse
from bench.machine.placement import NodePlace, write_placement
from bench.store.run_dir import begin
from bench.store.summary import Summary
from collectors.metrics.gpu import GPU_CLOCK_HELD_SECONDS
from collectors.metrics.host import HOST_CPU_SECONDS, HOST_LOAD, HOST_PRESSURE_SECONDS, HOST_SWAPPED_BYTES
from collectors.metrics.metric import Sample
from collectors.metrics.rank import ALLOCATION_RETRIES, OUT_OF_MEMORY
from collectors.sample_log import NodeLogWriter, Reading, SampleLog, open_node_log
from tests.bench.made.diagnosed import case_of
from tests.bench.made.examples import make_machine, make_summary
from workloads.cost_models.absent import Absent

NO_HISTORY = Absent(reason="no history was looked at")
START_NS = 10**18


@pytest.fixture
def summary(tmp_path: Path) -> Summary:
    """A run on two GPUs, whose folder has its case and machine alone."""
    case = case_of(ranks=2, device="cuda", backend="nccl")
    with closing(begin(case, make_machine(), tmp_path)) as run:
        return make_summary(run.id, case=case, folder=str(run.folder))


def _beat(second: float) -> list[Sample]:
    """Three quarters of a node's two CPUs are busy; GPU 1 is held back for a fifth of the time."""
    return [
        HOST_CPU_SECONDS.at(100 + 1.5 * second, mode="user"),
        HOST_CPU_SECONDS.at(900 + 0.4 * second, mode="idle"),
        HOST_CPU_SECONDS.at(5 + 0.1 * second, mode="iowait"),
        HOST_LOAD.at(3.0),
        HOST_PRESSURE_SECONDS.at(7 + 0.25 * second, resource="cpu", stalled="some"),
        HOST_PRESSURE_SECONDS.at(1 + 0.5 * second, resource="memory", stalled="some"),
        HOST_SWAPPED_BYTES.at(1e6 * second, direction="in"),
        HOST_SWAPPED_BYTES.at(2e6 * second, direction="out"),
        GPU_CLOCK_HELD_SECONDS.at(50 + 0.2 * second, gpu="1", reason="software_thermal"),
        GPU_CLOCK_HELD_SECONDS.at(9.0, gpu="1", reason="board_limit"),
    ]


def test_counters_of_a_node_become_shares_of_the_time_of_the_run(summary: Summary) -> None:
    with closing(open_node_log(Path(summary.folder) / "node0.jsonl", run=summary.run, node=0)) as log:
        writer = NodeLogWriter(log)
        for second in range(11):
            writer.write(_beat(second), time_ns=START_NS + second * 10**9)
    (node,) = observe(summary, NO_HISTORY).nodes
    assert node.busy_ratio == pytest.approx(0.75)
    assert node.load_tasks == 3
    assert node.cpu_pressure_ratio == pytest.approx(0.25)
    assert node.memory_pressure_ratio == pytest.approx(0.5)
    assert node.swapped_bytes == pytest.approx(30e6)
    ratio, reason = node.held_ratios["1"]
    assert ratio == pytest.approx(0.2)
    assert reason == "software_thermal"


def test_a_node_of_one_beat_tells_no_rate(summary: Summary) -> None:
    with closing(open_node_log(Path(summary.folder) / "node0.jsonl", run=summary.run, node=0)) as log:
        NodeLogWriter(log).write(_beat(0), time_ns=START_NS)
    assert observe(summary, NO_HISTORY).nodes == ()


def test_retries_of_the_allocator_are_summed_over_trials_of_the_worst_rank(summary: Summary) -> None:
    """In each trial a rank is a process of its own, which counts from 0."""
    for rank, counts in ((0, ((0, 1), (1, 0))), (1, ((0, 5), (1, 2)))):
        with closing(SampleLog(Path(summary.folder) / f"rank{rank}.jsonl")) as log:
            for trial, retries in counts:
                for step in (0, 1):
                    samples = [ALLOCATION_RETRIES.at(retries * step), OUT_OF_MEMORY.at(0)]
                    log.write(Reading(trial=trial, time_ns=0, mark="measured", step=step, samples=samples))
    assert observe(summary, NO_HISTORY).allocator == AllocatorTrouble(rank=1, retries=7, out_of_memory=0)


def test_ranks_of_several_nodes_have_their_hosts(summary: Summary) -> None:
    assert observe(summary, NO_HISTORY).rank_hosts == {}
    nodes = [
        NodePlace(number=number, name=f"n{number}", host=f"host{number}", switch=None, first_rank=number, ranks=1)
        for number in (0, 1)
    ]
    write_placement(Path(summary.folder), "slurm", nodes)
    assert observe(summary, NO_HISTORY).rank_hosts == {0: "host0", 1: "host1"}


def test_a_strategy_that_is_no_more_is_refused(summary: Summary) -> None:
    unknown = replace(summary, case=replace(summary.case, strategy="gone"))
    with pytest.raises(Misuse, match="has strategy gone, which this version does not have"):
        observe(unknown, NO_HISTORY)


def test_what_cannot_be_seen_is_told(summary: Summary) -> None:
    found = observe(make_summary(case=case_of(), folder="/nowhere/run"), NO_HISTORY)
    assert found.interconnect == "no history was looked at"
    assert [line.partition(":")[0] for line in found.missing] == [
        "what ranks and nodes logged",
        "the machine of the run",
    ]
    assert observe(summary, NO_HISTORY).cores == 2


def test_a_run_that_is_older_than_an_option_has_its_default_and_says_so(summary: Summary) -> None:
    case = summary.case
    older = {name: value for name, value in case.options.items() if name not in ("overlap", "lr_rule")}
    seen = observe(replace(summary, case=replace(case, options=older)), NO_HISTORY)
    assert seen.case.options == case.options
    assert any("overlap" in line and "lr_rule" in line and "predates" in line for line in seen.missing)
    diagnose(seen)
    assert not any("predates" in line for line in observe(summary, NO_HISTORY).missing)


def test_a_run_of_another_definition_is_compared_with_todays_law_and_says_so(summary: Summary) -> None:
    seen = observe(replace(summary, case=replace(summary.case, version=summary.case.version + 1)), NO_HISTORY)
    assert any("is compared with version" in line for line in seen.missing)
