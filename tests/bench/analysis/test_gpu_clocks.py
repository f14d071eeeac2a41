"""Clock and power of a product are those of the slowest rank's GPU, at the last beat of the node that fell into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.analysis.estimate import Estimate
from bench.analysis.gpu_clocks import GpuBeats
from bench.analysis.probes import read_probe_trials, results_of_probe
from bench.case import Case
from collectors.metrics import probes as probes_metrics
from collectors.metrics.gpu import GPU_CLOCK_HERTZ, GPU_INFO, GPU_POWER_WATTS
from collectors.metrics.metric import Sample
from collectors.node.node_log import NodeLogWriter, open_node_log
from collectors.sample_log import Ended, Opened, Reading, SampleLog
from tests.bench.made.examples import make_probe

SECOND_NS = 1_000_000_000
SHAPE = {"m": "8192", "n": "8192", "k": "8192"}


def read_of(gpu: int, clock_hertz: float, power_watts: float) -> list[Sample]:
    """What a node's collectors give of a GPU at a beat."""
    named = {**dict.fromkeys(GPU_INFO.labels, "unknown"), "gpu": str(gpu), "uuid": f"GPU-{gpu}-abc"}
    return [
        GPU_INFO.at(1, **named),
        GPU_POWER_WATTS.at(power_watts, gpu=str(gpu)),
        GPU_CLOCK_HERTZ.at(clock_hertz, gpu=str(gpu), clock="sm"),
        GPU_CLOCK_HERTZ.at(2.619e9, gpu=str(gpu), clock="memory"),
    ]


def write_node(folder: Path, beats: dict[int, list[Sample]]) -> None:
    """beats: by second."""
    log = open_node_log(folder / "node0.jsonl", run="r", node=0)
    writer = NodeLogWriter(log)
    for second, samples in beats.items():
        writer.write(samples, time_ns=second * SECOND_NS)
    log.close()


def write_rank(folder: Path, rank: int, elapsed_s: float, *, uuid: str | None, begun_s: float, ended_s: float) -> None:
    log = SampleLog(folder / f"rank{rank}.jsonl")
    log.write(Opened(run="r", trial=0, rank=rank, time_ns=0, pid=1, host="node0", gpu_uuid=uuid))
    log.write(
        Reading(
            trial=0,
            time_ns=round(ended_s * SECOND_NS),
            mark="probe",
            step=0,
            begun_ns=round(begun_s * SECOND_NS),
            samples=[probes_metrics.MATMUL_SECONDS.at(elapsed_s, **SHAPE)],
        )
    )
    log.write(Ended(trial=0, time_ns=0, step=1))
    log.close()


def gpu_case(ranks: int) -> Case:
    return replace(make_probe("matmul", ranks=ranks), device="cuda", backend="nccl")


def judge(folder: Path, case: Case) -> tuple[dict[str, Estimate], tuple[str, ...]]:
    found, notes = results_of_probe(case, read_probe_trials(folder, case.ranks))
    return {one.metric: one for one in found}, notes


def beats_of(seconds: Sequence[int]) -> dict[int, list[Sample]]:
    """Clocks fall and powers rise with time; GPU 1 is slower than GPU 0."""
    return {
        second: [*read_of(0, 2e9 - second * 1e7, 600 + second), *read_of(1, 1.9e9 - second * 1e7, 650 + second)]
        for second in seconds
    }


def test_the_last_beat_within_the_slowest_ranks_products_counts(tmp_path: Path) -> None:
    write_node(tmp_path, beats_of(range(10)))
    write_rank(tmp_path, 0, 0.001, uuid="0-abc", begun_s=3.5, ended_s=5.9)
    write_rank(tmp_path, 1, 0.002, uuid="1-abc", begun_s=3.5, ended_s=6.2)
    found, notes = judge(tmp_path, gpu_case(2))
    clock = found[probes_metrics.RUN_MATMUL_CLOCK_HERTZ.name]
    assert clock.median == pytest.approx(1.84e9)
    assert clock.labels == SHAPE
    assert found[probes_metrics.RUN_MATMUL_POWER_WATTS.name].median == 656
    assert not [note for note in notes if note.startswith("clock and power")]


@pytest.mark.parametrize(
    ("uuid", "seconds"),
    [("0-abc", (1, 9)), (None, range(10)), ("another", range(10))],
    ids=["no beat", "unnamed", "away"],
)
def test_what_no_beat_tells_is_absent_and_said(uuid: str | None, seconds: Sequence[int], tmp_path: Path) -> None:
    write_node(tmp_path, beats_of(seconds))
    write_rank(tmp_path, 0, 0.001, uuid=uuid, begun_s=3.5, ended_s=5.9)
    found, notes = judge(tmp_path, gpu_case(1))
    assert probes_metrics.RUN_MATMUL_FLOPS.name in found
    assert probes_metrics.RUN_MATMUL_CLOCK_HERTZ.name not in found
    (note,) = [note for note in notes if note.startswith("clock and power")]
    assert "no beat of the node's log fell into them" in note


def test_on_a_cpu_they_are_absent_since_nobody_reads_them(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, 0.001, uuid=None, begun_s=3.5, ended_s=5.9)
    found, notes = judge(tmp_path, make_probe("matmul", ranks=1))
    assert probes_metrics.RUN_MATMUL_CLOCK_HERTZ.name not in found
    assert "clock and power of products are absent: the node's collectors read those of GPUs only" in notes


def test_a_gpu_that_tells_no_clock_has_its_power(tmp_path: Path) -> None:
    write_node(tmp_path, {4: [sample for sample in read_of(0, 1e9, 500) if sample.metric != GPU_CLOCK_HERTZ.name]})
    beat = GpuBeats(tmp_path).last("0-abc", 3 * SECOND_NS, 5 * SECOND_NS)
    assert beat is not None
    assert (beat.clock_hertz, beat.power_watts) == (None, 500)
