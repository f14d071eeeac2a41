"""A probe's logs become figures by nccl-tests' and STREAM's definitions; truths are made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.case import Case
from bench.results.estimate import Estimate
from bench.results.probes import ProbeLogs, read_probe_trials, results_of_probe
from collectors.metrics import probes as probes_metrics
from collectors.metrics.metric import Metric, Sample
from collectors.sample_log import Ended, Reading, SampleLog
from tests.bench.made.examples import make_probe

MIB = 1 << 20


def write_trials(folder: Path, trials: Sequence[Sequence[Sequence[Sample]]]) -> None:
    """trials[trial][rank]: the samples that the rank takes, one reading each."""
    for trial, ranks in enumerate(trials):
        for rank, samples in enumerate(ranks):
            log = SampleLog(folder / f"rank{rank}.jsonl")
            for step, sample in enumerate(samples):
                log.write(Reading(trial=trial, time_ns=0, mark="probe", step=step, samples=[sample]))
            log.write(Ended(trial=trial, time_ns=1, step=len(samples)))
            log.close()


def judge(folder: Path, case: Case) -> tuple[tuple[Estimate, ...], tuple[str, ...]]:
    return results_of_probe(case, read_probe_trials(folder, case.ranks))


def only(found: Sequence[Estimate], metric: Metric, **labels: str) -> Estimate:
    (estimate,) = (one for one in found if one.metric == metric.name and labels.items() <= one.labels.items())
    return estimate


def collective(time_s: float, size: int = MIB, name: str = "all_reduce", algorithm: str = "library") -> Sample:
    return probes_metrics.COLLECTIVE_SECONDS.at(time_s, collective=name, algorithm=algorithm, size=str(size))


def test_a_collective_takes_the_mean_over_ranks_as_in_nccl_tests(tmp_path: Path) -> None:
    write_trials(tmp_path, [[[collective(0.001)], [collective(0.003)]]])
    found, _ = judge(tmp_path, make_probe("collectives"))
    assert only(found, probes_metrics.RUN_COLLECTIVE_SECONDS).median == pytest.approx(0.002)
    assert only(found, probes_metrics.RUN_COLLECTIVE_ALGORITHM_BANDWIDTH).median == pytest.approx(MIB / 0.002)


@pytest.mark.parametrize(("name", "factor"), [("all_reduce", 1.5), ("all_gather", 0.75), ("broadcast", 1.0)])
def test_bus_bandwidth_has_the_factor_of_its_collective(name: str, factor: float, tmp_path: Path) -> None:
    write_trials(tmp_path, [[[collective(0.5, name=name)]] * 4])
    found, _ = judge(tmp_path, make_probe("collectives", ranks=4))
    assert only(found, probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH).median == pytest.approx(factor * MIB / 0.5)


def test_a_rank_that_is_alone_has_no_bus_bandwidth(tmp_path: Path) -> None:
    write_trials(tmp_path, [[[collective(0.5)]]])
    found, _ = judge(tmp_path, make_probe("collectives", ranks=1))
    assert {one.metric for one in found} == {
        probes_metrics.RUN_COLLECTIVE_SECONDS.name,
        probes_metrics.RUN_COLLECTIVE_ALGORITHM_BANDWIDTH.name,
    }


LATENCY_S, BANDWIDTH = 1e-4, 1e9
SIZES = [4**power for power in range(5, 12)]


def ideal_s(size: int, ranks: int) -> float:
    """Of a ring's all_reduce."""
    return 2 * (ranks - 1) * LATENCY_S + 2 * (ranks - 1) / ranks * size / BANDWIDTH


def test_the_link_of_an_ideal_ring_is_found(tmp_path: Path) -> None:
    sweep = [collective(ideal_s(size, 4), size) for size in SIZES]
    write_trials(tmp_path, [[sweep] * 4] * 2)
    found, notes = judge(tmp_path, make_probe("collectives", ranks=4))
    assert only(found, probes_metrics.RUN_LINK_LATENCY_SECONDS).median == pytest.approx(LATENCY_S)
    bandwidth = only(found, probes_metrics.RUN_LINK_BANDWIDTH)
    assert bandwidth.median == pytest.approx(BANDWIDTH)
    assert bandwidth.trials == pytest.approx((BANDWIDTH, BANDWIDTH))
    assert not [note for note in notes if "link" in note]


def test_what_is_measured_on_an_ideal_ring_is_what_its_law_expects(tmp_path: Path) -> None:
    sweep = [collective(ideal_s(size, 4), size) for size in SIZES]
    write_trials(tmp_path, [[sweep] * 4])
    found, _ = judge(tmp_path, make_probe("collectives", ranks=4))
    for size in SIZES:
        expected = only(found, probes_metrics.RUN_COLLECTIVE_EXPECTED_SECONDS, size=str(size))
        assert expected.median == pytest.approx(ideal_s(size, 4))


EIGHT_GPUS_US = {10: 22, 12: 22.5, 14: 24, 16: 29, 18: 34, 20: 48, 22: 73, 24: 146, 26: 367, 28: 1110, 30: 4000}
"""An all_reduce of 2^k bytes on 8 GPUs that NVLink joins, about as nccl-tests prints it: three protocols, one after
another."""


def nccl_sweep(folder: Path, largest: int) -> tuple[tuple[Estimate, ...], tuple[str, ...]]:
    sweep = [collective(time_us / 1e6, 1 << power) for power, time_us in EIGHT_GPUS_US.items() if power <= largest]
    folder.mkdir()
    write_trials(folder, [[sweep] * 8])
    return judge(folder, replace(make_probe("collectives", ranks=8), device="cuda", backend="nccl"))


def test_a_link_is_of_the_devices_times_and_the_latency_with_the_host_is_told_beside_it(tmp_path: Path) -> None:
    sweep = [collective(ideal_s(size, 4), size) for size in SIZES]
    launched_s = 8e-4
    sweep += [
        probes_metrics.COLLECTIVE_WITH_HOST_SECONDS.at(
            launched_s + ideal_s(size, 4), collective="all_reduce", algorithm="library", size=str(size)
        )
        for size in SIZES
    ]
    write_trials(tmp_path, [[sweep] * 4] * 2)
    found, _ = judge(tmp_path, replace(make_probe("collectives", ranks=4), device="cuda", backend="nccl"))
    assert only(found, probes_metrics.RUN_LINK_LATENCY_SECONDS).median == pytest.approx(LATENCY_S)
    assert only(found, probes_metrics.RUN_LINK_BANDWIDTH).median == pytest.approx(BANDWIDTH)
    with_host = only(found, probes_metrics.RUN_LINK_WITH_HOST_LATENCY_SECONDS)
    assert with_host.median == pytest.approx(LATENCY_S + launched_s / (2 * 3))
    largest = str(SIZES[-1])
    alone, both = (
        only(found, metric, size=largest).median
        for metric in (probes_metrics.RUN_COLLECTIVE_SECONDS, probes_metrics.RUN_COLLECTIVE_WITH_HOST_SECONDS)
    )
    assert both - alone == pytest.approx(launched_s)


def test_rates_are_of_the_devices_times_and_those_with_the_host_have_names_of_their_own(tmp_path: Path) -> None:
    shape = {"m": "10", "n": "20", "k": "30"}
    times = [
        probes_metrics.MATMUL_SECONDS.at(0.001, **shape),
        probes_metrics.MATMUL_WITH_HOST_SECONDS.at(0.01, **shape),
    ]
    write_trials(tmp_path, [[times]])
    found, _ = judge(tmp_path, make_probe("matmul", ranks=1))
    assert only(found, probes_metrics.RUN_MATMUL_FLOPS).median == pytest.approx(12_000 / 0.001)
    assert only(found, probes_metrics.RUN_MATMUL_WITH_HOST_FLOPS).median == pytest.approx(12_000 / 0.01)


def test_the_link_of_a_sweep_over_protocols_is_told_with_what_it_is_of(tmp_path: Path) -> None:
    short, _ = nccl_sweep(tmp_path / "short", 24)
    found, notes = nccl_sweep(tmp_path / "long", 30)
    bus = only(found, probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH, size=str(1 << 30)).median
    assert only(short, probes_metrics.RUN_LINK_BANDWIDTH).median < 0.5 * bus
    assert 0.7 * bus < only(found, probes_metrics.RUN_LINK_BANDWIDTH).median < bus
    (note,) = [note for note in notes if note.startswith("links are fitted")]
    assert "calls of 1,024 to 1,073,741,824 bytes" in note


def test_a_sweep_too_short_to_fit_has_no_link_and_says_why(tmp_path: Path) -> None:
    write_trials(tmp_path, [[[collective(0.1, 1024), collective(0.2, 4096)]] * 2])
    found, notes = judge(tmp_path, make_probe("collectives"))
    assert not [one for one in found if one.metric == probes_metrics.RUN_LINK_BANDWIDTH.name]
    (reason,) = [note for note in notes if note.startswith("the link")]
    assert reason.startswith("the link by all_reduce is absent: 2 points have 2 sizes of messages; measure 3")


def counts(rounds: float, sent: float, peak: float) -> list[Sample]:
    labels: Mapping[str, str] = {"collective": "all_reduce", "algorithm": "ring", "size": "1200"}
    return [
        collective(0.1, 1200, algorithm="ring"),
        probes_metrics.COLLECTIVE_ROUNDS.at(rounds, **labels),
        probes_metrics.COLLECTIVE_SENT_BYTES.at(sent, **labels),
        probes_metrics.COLLECTIVE_PEAK_BYTES.at(peak, **labels),
    ]


def test_counts_of_an_algorithm_stand_beside_its_law(tmp_path: Path) -> None:
    write_trials(tmp_path, [[counts(4, 1600, 400), counts(4, 1600, 400), counts(3, 1500, 500)]])
    found, _ = judge(tmp_path, make_probe("all_reduce", ranks=3))
    for metric, expected, counted in (
        (probes_metrics.RUN_COLLECTIVE_ROUNDS, 4, 4),
        (probes_metrics.RUN_COLLECTIVE_TOTAL_BYTES, 4800, 4700),
        (probes_metrics.RUN_COLLECTIVE_PEAK_BYTES, 400, 500),
    ):
        assert only(found, metric, account="expected").median == expected
        assert only(found, metric, account="counted").median == counted


def test_a_product_is_as_fast_as_on_the_slowest_rank(tmp_path: Path) -> None:
    times = [probes_metrics.MATMUL_SECONDS.at(time_s, m="10", n="20", k="30") for time_s in (0.001, 0.002)]
    write_trials(tmp_path, [[[time] for time in times]])
    found, _ = judge(tmp_path, make_probe("matmul"))
    assert only(found, probes_metrics.RUN_MATMUL_FLOPS).median == pytest.approx(2 * 10 * 20 * 30 / 0.002)


def test_a_triad_counts_three_buffers(tmp_path: Path) -> None:
    write_trials(tmp_path, [[[probes_metrics.COPY_SECONDS.at(0.5, kind="memory_triad", size="1000")]]])
    found, _ = judge(tmp_path, make_probe("copies", ranks=1))
    assert only(found, probes_metrics.RUN_COPY_BANDWIDTH).median == pytest.approx(6000)


def test_without_a_complete_trial_all_is_absent() -> None:
    assert results_of_probe(make_probe("matmul"), ProbeLogs(trials=(), notes=())) == (
        (),
        ("no trial was completed: all figures are absent",),
    )


def test_gloo_does_not_tell_what_it_chose(tmp_path: Path) -> None:
    write_trials(tmp_path, [[[collective(0.1)]] * 2])
    _, notes = judge(tmp_path, make_probe("collectives"))
    assert "algorithm and protocol are absent: gloo does not report its choice" in notes


def test_a_rate_is_the_size_over_the_time_that_stands_beside_it_whatever_the_number_of_trials(tmp_path: Path) -> None:
    write_trials(tmp_path, [[[collective(0.001)]] * 2, [[collective(0.009)]] * 2])
    found, _ = judge(tmp_path, make_probe("collectives"))
    time_s = only(found, probes_metrics.RUN_COLLECTIVE_SECONDS)
    rate = only(found, probes_metrics.RUN_COLLECTIVE_ALGORITHM_BANDWIDTH)
    assert time_s.high is not None
    assert rate.median == pytest.approx(MIB / time_s.median)
    assert rate.low == pytest.approx(MIB / time_s.high)
    assert rate.trials == pytest.approx((MIB / 0.001, MIB / 0.009))


def test_without_an_all_reduce_the_run_says_why_no_time_is_expected(tmp_path: Path) -> None:
    write_trials(tmp_path, [[[collective(0.1, name="broadcast")]] * 2])
    _, notes = judge(tmp_path, make_probe("collectives"))
    assert "predicted times are absent: they need the link by all_reduce, which this run did not measure" in notes


def choose(folder: Path, size: int) -> None:
    """Trial 0 on two ranks, in which NCCL told rank 0 of its choice for this size."""
    for rank in range(2):
        log = SampleLog(folder / f"rank{rank}.jsonl")
        samples = [collective(99.0)]
        if rank == 0:
            samples += [
                probes_metrics.COLLECTIVE_CHOICE.at(
                    1, collective="all_reduce", size=str(size), chosen="RING", protocol="LL"
                ),
            ]
        log.write(Reading(trial=0, time_ns=0, mark="nccl_log", step=0, samples=samples))
        log.write(Ended(trial=0, time_ns=1, step=1))
        log.close()
    for rank in range(2):
        log = SampleLog(folder / f"rank{rank}.jsonl")
        log.write(Reading(trial=1, time_ns=0, mark="probe", step=0, samples=[collective(0.5)]))
        log.write(Ended(trial=1, time_ns=1, step=1))
        log.close()


def test_the_trial_in_which_nccl_is_asked_is_no_part_of_speed(tmp_path: Path) -> None:
    choose(tmp_path, MIB)
    found, notes = judge(tmp_path, make_probe("collectives", backend="nccl", device="cuda"))
    assert only(found, probes_metrics.RUN_COLLECTIVE_SECONDS).trials == (0.5,)
    assert only(found, probes_metrics.RUN_COLLECTIVE_CHOICE, chosen="RING", protocol="LL", size=str(MIB)).median == 1
    assert any(note.startswith("trial 0 asked NCCL for its choices") for note in notes)


def test_a_choice_for_a_size_that_was_not_measured_is_not_shown(tmp_path: Path) -> None:
    choose(tmp_path, 4)  # As a barrier is, which NCCL carries out as an all_reduce.
    found, _ = judge(tmp_path, make_probe("collectives", backend="nccl", device="cuda"))
    assert not [one for one in found if one.metric == probes_metrics.RUN_COLLECTIVE_CHOICE.name]


def test_one_trial_on_nccl_asks_for_no_choice_and_says_so(tmp_path: Path) -> None:
    write_trials(tmp_path, [[[collective(0.1)]] * 2])
    _, notes = judge(tmp_path, make_probe("collectives", backend="nccl", device="cuda", trials=1))
    assert any("with a single trial none asks NCCL; use --trials 2" in note for note in notes)
