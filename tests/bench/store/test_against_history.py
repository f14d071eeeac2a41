"""Earlier probes of the same hardware tell a run's ceiling and link; others do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.results.estimate import Estimate, estimate
from bench.store.hardware_baselines import against_history, reference_runs
from bench.store.history import History
from bench.store.summary import Summary
from collectors.metrics import probes as probe_metrics
from collectors.metrics import results
from collectors.metrics.metric import Metric
from tests.bench.made.examples import make_machine, make_probe, make_summary

LATENCY_S, BANDWIDTH = 1e-3, 1e6


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(f"sqlite:///{tmp_path / 'history.sqlite'}") as opened:
        yield opened


def add_probe(
    history: History, strategy: str, estimates: Sequence[Estimate], *, run: str = "", ranks: int = 2, **changes: object
) -> None:
    probe = make_summary(run or f"run-{strategy}", case=make_probe(strategy, ranks), estimates=tuple(estimates))
    history.add(replace(probe, scaling=(), **changes), make_machine())  # type: ignore[arg-type]


def link(latency_s: float = LATENCY_S, bandwidth: float = BANDWIDTH) -> list[Estimate]:
    return [
        estimate(probe_metrics.RUN_LINK_LATENCY_SECONDS, [latency_s], collective="all_reduce"),
        estimate(probe_metrics.RUN_LINK_BANDWIDTH, [bandwidth], collective="all_reduce"),
    ]


def product(*flops: float) -> list[Estimate]:
    return [estimate(probe_metrics.RUN_MATMUL_FLOPS, flops, m="256", n="256", k="256")]


def trained(*flops: float) -> Summary:
    return make_summary("run-trained", estimates=(estimate(results.RUN_FLOPS, flops),))


def only(summary: Summary, metric: Metric, **labels: str) -> Estimate | None:
    found = [one for one in summary.estimates if one.metric == metric.name and labels.items() <= one.labels.items()]
    assert len(found) < 2
    return found[0] if found else None


def test_mfu_is_a_share_of_the_measured_ceiling_with_the_intervals_of_both(history: History) -> None:
    add_probe(history, "matmul", product(1.9e9, 2e9, 2.1e9))
    judged = against_history(trained(0.9e9, 1e9, 1.1e9), history)
    share = only(judged, results.RUN_MEASURED_MFU)
    assert share is not None
    assert share.median == pytest.approx(0.5)
    assert share.low is not None
    assert share.low < 0.5
    assert "the measured ceiling is 2 GFLOP/s, of a product of 256 x 256 x 256 in run-matmul" in judged.notes


def test_without_a_matmul_run_the_command_that_makes_one_is_said(history: History) -> None:
    judged = against_history(trained(1e9, 1.1e9), history)
    assert only(judged, results.RUN_MEASURED_MFU) is None
    (note,) = [note for note in judged.notes if note.startswith("MFU against a measured ceiling is absent")]
    assert "observatory run matmul --device cpu --precision fp32 --ranks 2 --threads 1" in note


def test_communication_is_expected_on_the_measured_link(history: History) -> None:
    add_probe(history, "collectives", link())
    summary = trained(1e9, 1.1e9)
    expected = only(against_history(summary, history), results.RUN_COMMUNICATION_SECONDS, account="expected")
    assert expected is not None
    (transfer,) = summary.case.spec().transfers(summary.case)
    messages, wire = 2 * transfer.calls, transfer.payload_bytes  # Of a ring on two ranks.
    assert expected.median == pytest.approx(messages * LATENCY_S + wire / BANDWIDTH)


def test_the_newest_link_counts_whichever_probe_told_it(history: History) -> None:
    add_probe(history, "collectives", link(), run="older", started_ns=1)
    add_probe(history, "all_reduce", link(bandwidth=10 * BANDWIDTH), run="newer", started_ns=2)
    add_probe(history, "collectives", [], run="newest-without-a-link", started_ns=3)
    judged = against_history(trained(1e9, 1.1e9), history)
    expected = only(judged, results.RUN_COMMUNICATION_SECONDS, account="expected")
    assert expected is not None
    (transfer,) = judged.case.spec().transfers(judged.case)
    assert expected.median == pytest.approx(2 * transfer.calls * LATENCY_S + transfer.payload_bytes / BANDWIDTH / 10)


@pytest.mark.parametrize("changes", [{"ranks": 4}, {"hardware": "another CPU"}, {"outcome": "failed"}])
def test_a_link_of_other_ranks_or_hardware_or_of_a_failed_run_does_not_count(
    changes: dict[str, object], history: History
) -> None:
    add_probe(history, "collectives", link(), **changes)  # type: ignore[arg-type]
    judged = against_history(trained(1e9, 1.1e9), history)
    assert only(judged, results.RUN_COMMUNICATION_SECONDS) is None
    (note,) = [note for note in judged.notes if note.startswith("expected communication is absent")]
    assert "observatory run collectives --ranks 2 --option collectives=all_reduce" in note


def test_a_probe_is_judged_by_no_other(history: History) -> None:
    add_probe(history, "matmul", product(1e9, 2e9))
    probe = make_summary(case=make_probe("collectives"), estimates=())
    assert against_history(probe, history) == probe


def test_a_run_without_a_trial_stays_as_it_is(history: History) -> None:
    failed = make_summary(estimates=(), trials_done=0)
    assert against_history(failed, history) == failed


def test_references_are_the_fastest_product_and_the_newest_link_of_each_setting(history: History) -> None:
    """Products come newest first; among equals the newest counts, and a failed or empty run hides none behind it."""
    runs: tuple[tuple[str, float, dict[str, Any]], ...] = (
        ("of-the-past", 9e9, {"case": replace(make_probe("matmul"), version=99)}),
        ("elsewhere", 1e9, {"hardware": "AMD EPYC, 8 cores"}),
        ("fast", 5e9, {}),
        ("as-fast", 5e9, {}),
        ("slower", 4e9, {}),
        ("failed", 8e9, {"outcome": "failed"}),
    )
    for started_ns, (run, flops, changes) in enumerate(runs):
        add_probe(history, "matmul", product(flops, flops), run=run, started_ns=started_ns, **changes)
    add_probe(history, "matmul", [], run="empty", started_ns=9)
    add_probe(history, "all_reduce", link(), run="linked", started_ns=9)
    history.add(trained(1e9, 1e9), make_machine())
    ceilings = dict.fromkeys(("of-the-past", "elsewhere", "as-fast"), "a ceiling")
    assert reference_runs(history) == {"linked": "a link", **ceilings}


def test_a_replaced_figure_is_there_once_and_the_others_stay(history: History) -> None:
    add_probe(history, "matmul", product(2e9, 2.1e9))
    run = trained(0.9e9, 1e9, 1.1e9)
    judged = against_history(against_history(run, history), history)
    assert only(judged, results.RUN_MEASURED_MFU) is not None
    assert only(judged, results.RUN_FLOPS) == run.estimates[0]
