"""Clock and power of a product are the slowest rank's GPU's at the last beat in it; energy is that of all GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.case import Case
from bench.results.estimate import Estimate
from bench.results.gpu_clocks import GpuBeats
from bench.results.probes import read_probe_trials, results_of_probe
from bench.results.results import results_of
from bench.results.trials import read_trials
from collectors.metrics import probes as probes_metrics
from collectors.metrics.gpu import GPU_CLOCK_HERTZ, GPU_ENERGY_JOULES, GPU_INFO, GPU_INSTANCE, GPU_POWER_WATTS
from collectors.metrics.metric import Sample
from collectors.metrics.rank import OBSERVER_SECONDS, STEP_SECONDS
from collectors.metrics.results import RUN_GPU_POWER_WATTS, RUN_TOKEN_ENERGY_JOULES
from collectors.sample_log import Ended, Mark, NodeLogWriter, Opened, Reading, SampleLog, open_node_log
from tests.bench.made.examples import make_case, make_probe
from workloads.cost_models.absent import Absent

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


# Energy, by the counters.


def write_steps(folder: Path, rank: int, *, uuid: str | None, seconds: Sequence[float], traced_s: float) -> None:
    """A rank of one trial whose measured steps, of half a second each, are logged at these times."""
    log = SampleLog(folder / f"rank{rank}.jsonl")
    log.write(Opened(run="r", trial=0, rank=rank, time_ns=0, pid=1, host="node0", gpu_uuid=uuid))
    marks: list[tuple[float, Mark]] = [(second, "measured") for second in seconds]
    for step, (second, mark) in enumerate(sorted([*marks, (traced_s, "traced")])):
        samples = [STEP_SECONDS.at(0.5), OBSERVER_SECONDS.at(0.0)] if mark == "measured" else []
        time_ns = round(second * SECOND_NS)
        log.write(Reading(trial=0, time_ns=time_ns, mark=mark, step=step, samples=samples))
    log.write(Ended(trial=0, time_ns=0, step=1))
    log.close()


def counters(powers_w: Sequence[float], seconds: Sequence[int]) -> dict[int, list[Sample]]:
    """Beats of GPUs that take constant power, by their counters; the power that they name is another."""
    return {
        second: [
            sample
            for gpu, power_w in enumerate(powers_w)
            for sample in (*read_of(gpu, 1e9, 1.0), GPU_ENERGY_JOULES.at(5e6 + power_w * second, gpu=str(gpu)))
        ]
        for second in seconds
    }


def judge_energy(
    folder: Path, uuids: Sequence[str | None], *, traced_s: float = 99.0
) -> tuple[dict[str, Estimate], str]:
    """Judge a trial whose steps were logged from second 2 to second 8, and what its notes say of energy."""
    for rank, uuid in enumerate(uuids):
        write_steps(folder, rank, uuid=uuid, seconds=[2 + step / 2 for step in range(13)], traced_s=traced_s)
    case = replace(make_case(ranks=len(uuids)), device="cuda", backend="nccl")
    found, notes = results_of(case, read_trials(folder, case.ranks).trials, Absent(reason="no GPU"))
    return {one.metric: one for one in found}, next((note for note in notes if note.startswith("power and")), "")


def test_energy_of_a_token_is_that_of_all_gpus_by_their_counters(tmp_path: Path) -> None:
    # A step of 0.5 s has 8 sequences of 8 tokens: (400 W + 600 W) x 0.5 s / 64.
    write_node(tmp_path, counters((400, 600), range(12)))
    found, note = judge_energy(tmp_path, ["0-abc", "1-abc"])
    assert found[RUN_TOKEN_ENERGY_JOULES.name].median == pytest.approx(1000 * 0.5 / 64)
    assert found[RUN_GPU_POWER_WATTS.name].median == pytest.approx(500)
    assert note == ""


def test_a_gpu_that_ranks_share_counts_once(tmp_path: Path) -> None:
    write_node(tmp_path, counters((400,), range(12)))
    found, _ = judge_energy(tmp_path, ["0-abc", "0-abc"])
    assert found[RUN_TOKEN_ENERGY_JOULES.name].median == pytest.approx(400 * 0.5 / 64)
    assert found[RUN_GPU_POWER_WATTS.name].median == pytest.approx(400)


def test_only_the_measured_steps_have_energy(tmp_path: Path) -> None:
    beats = counters((400,), range(12))
    for second in (0, 1, 9, 10, 11):  # Before and after them it takes far more.
        beats[second][-1] = GPU_ENERGY_JOULES.at(5e6 + 400 * second + 1e5 * (second > 8), gpu="0")
    write_node(tmp_path, beats)
    found, _ = judge_energy(tmp_path, ["0-abc"])
    assert found[RUN_GPU_POWER_WATTS.name].median == pytest.approx(400)


def test_a_beat_that_repeats_the_last_counter_is_no_reading(tmp_path: Path) -> None:
    beats = counters((400,), range(12))
    beats[7][-1] = beats[8][-1] = beats[6][-1]  # The driver was late: energy stands still, and time does not.
    write_node(tmp_path, beats)
    found, _ = judge_energy(tmp_path, ["0-abc"])
    assert found[RUN_GPU_POWER_WATTS.name].median == pytest.approx(400)


@pytest.mark.parametrize(
    ("uuid", "seconds", "traced_s", "why"),
    [
        (None, range(12), 99, "they are measured on GPUs, and no rank's log names one"),
        ("another", range(12), 99, "its node's log has no reading of its GPU's energy counter"),
        ("0-abc", (1, 4, 5, 9), 99, "over only 1.0 s; at least 2 s are needed, so use more --steps"),
        ("0-abc", range(12), 5.2, "profiler windows lie between the measured steps; without --trace-every none do"),
    ],
    ids=["unnamed", "away", "short", "traced"],
)
def test_energy_that_is_not_known_is_absent_and_said(
    uuid: str | None, seconds: Sequence[int], traced_s: float, why: str, tmp_path: Path
) -> None:
    write_node(tmp_path, counters((400,), seconds))
    found, note = judge_energy(tmp_path, [uuid], traced_s=traced_s)
    assert RUN_TOKEN_ENERGY_JOULES.name not in found
    assert note.endswith(why)


def test_a_rank_that_alone_names_no_gpu_is_named(tmp_path: Path) -> None:
    write_node(tmp_path, counters((400,), range(12)))
    _, note = judge_energy(tmp_path, ["0-abc", None])
    assert note.endswith("the log of rank 1 does not name its GPU")


def test_a_counter_that_began_anew_tells_nothing(tmp_path: Path) -> None:
    beats = counters((400,), range(12))
    for second in range(5, 12):
        beats[second][-1] = GPU_ENERGY_JOULES.at(400 * second, gpu="0")
    write_node(tmp_path, beats)
    found, note = judge_energy(tmp_path, ["0-abc"])
    assert RUN_TOKEN_ENERGY_JOULES.name not in found
    assert note.endswith("the energy counter of its GPU was reset meanwhile")


def test_a_mig_instance_has_no_counter_of_its_own(tmp_path: Path) -> None:
    beats = counters((400,), range(12))
    for samples in beats.values():
        slice_ = GPU_INSTANCE.at(
            1, **{**dict.fromkeys(GPU_INSTANCE.labels, "unknown"), "gpu": "0", "uuid": "MIG-0-part"}
        )
        samples.insert(1, slice_)
    write_node(tmp_path, beats)
    found, note = judge_energy(tmp_path, ["0-part"])
    assert RUN_TOKEN_ENERGY_JOULES.name not in found
    assert note.endswith("NVML counts the energy of a whole GPU, and the rank computes on a MIG instance of it")


def test_on_a_cpu_energy_is_absent_since_nobody_counts_it(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, uuid=None, seconds=(1.0, 2.0), traced_s=99)
    _, notes = results_of(make_case(ranks=1), read_trials(tmp_path, 1).trials, Absent(reason="a CPU"))
    assert "power and energy are absent: they are measured on GPUs, and no rank's log names one" in notes
