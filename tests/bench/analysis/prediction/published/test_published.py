"""Published rows: they are complete and copied right, and the page has every error."""

from __future__ import annotations

import statistics
import subprocess
import sys

import pytest
from msgspec.structs import replace

from bench.analysis.prediction.calibration import (
    ATTENTION_SHARE,
    ATTENTION_SPREAD,
    ELEMENTWISE_SHARE,
    HIDDEN_SHARE,
    HIDDEN_SPREAD,
    PRODUCTS_SHARE,
    PRODUCTS_SPREAD,
)
from tests.bench.analysis.prediction.published.comparison import CHANGES, compare, differences, summaries, summary
from tests.bench.analysis.prediction.published.law import (
    Law,
    fitted,
    is_fitted,
    optimizer_s,
    products_alone,
    scatter,
    terms,
)
from tests.bench.analysis.prediction.published.page import PAGE, page
from tests.bench.analysis.prediction.published.rows import FILES, Report, read_report, rows_of
from workloads.cost_models.step_time import StepTime

REPORTS = {report.report: report for report in map(read_report, FILES)}
TITAN, FOUNDRY = rows_of(REPORTS["torchtitan"]), rows_of(REPORTS["llm-foundry"])
OF_TITAN, OF_FOUNDRY = ([compare(row) for row in rows] for rows in (TITAN, FOUNDRY))


# The data.


def test_the_rows_of_both_reports_are_there() -> None:
    assert [(row.published.gpus, row.published.compile, row.measured) for row in TITAN] == [
        (8, "none", 5762),
        (8, "default", 6667),
        (128, "none", 5605),
        (128, "default", 6514),
    ]
    gpus = [row.published.gpus for row in FOUNDRY]
    assert (sum(count >= 128 for count in gpus), sum(count < 128 for count in gpus)) == (18, 52)


def test_each_rate_and_its_published_mfu_agree() -> None:
    """A slip of the pen in a shape, a length or a rate would part them.

    The report's N has the positions, ours has not; they are 2 % of the weights where the sequence is longest.
    """
    for row in FOUNDRY:
        assert row.published.mfu_percent is not None
        mfu = row.measured * row.shape.flops_per_step() / row.shape.tokens / row.peak.flops_per_second
        assert 100 * mfu == pytest.approx(row.published.mfu_percent, rel=0.025), row.words


def test_the_models_have_as_many_weights_as_published() -> None:
    of_models = {row.published.model: row.shape.parameters() for row in FOUNDRY}
    published = {"760m": 0.7605, "1b": 1.316, "3b": 2.652, "7b": 6.659, "13b": 12.854, "30b": 29.975, "70b": 64.862}
    assert {name: count / 1e9 for name, count in of_models.items()} == pytest.approx(published, rel=0.006)


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_a_report_says_where_when_and_how(report: Report) -> None:
    assert "/blob/" in report.address  # At a commit, so that it stays what it is.
    assert report.date.startswith("20")
    assert len(report.conditions) >= 3
    assert all(each.reason for each in report.not_compared)
    assert report.not_compared


def test_a_row_of_the_wrong_length_or_model_is_refused() -> None:
    report = REPORTS["torchtitan"]
    short = replace(report, table=replace(report.table, rows=[report.table.rows[0][:-1]]))
    with pytest.raises(ValueError, match="shorter"):
        rows_of(short)
    with pytest.raises(ValueError, match="no such model: 8b"):
        rows_of(replace(report, models={}))


def test_a_row_runs_on_as_many_nodes_as_it_needs() -> None:
    assert [(row.machine.table.nodes, row.case.nodes, row.case.ranks) for row in TITAN] == [
        (1, 1, 8),
        (1, 1, 8),
        (16, 16, 128),
        (16, 16, 128),
    ]


# The fit of the law.


def test_the_constants_of_the_product_are_those_of_the_fit() -> None:
    law = fitted([row for row in FOUNDRY if is_fitted(row)])
    constants = (PRODUCTS_SHARE, ATTENTION_SHARE, ELEMENTWISE_SHARE, HIDDEN_SHARE)
    assert constants == tuple(round(each, 2) for each in (law.products, law.attention, law.elementwise, law.hidden))


def test_the_ranges_are_those_of_the_rows_that_were_fitted_and_of_the_rows_that_none_explains() -> None:
    rows = [row for row in FOUNDRY if is_fitted(row)]
    products, attention, _, exposed = scatter(rows, law := fitted(rows))
    assert PRODUCTS_SPREAD[1] == round(1 / products[0], 2)
    assert PRODUCTS_SPREAD[0] == pytest.approx(statistics.median(products_alone(row, law) for row in TITAN), abs=0.02)
    assert (round(1 / attention[1], 2), round(1 / attention[0], 2)) == ATTENTION_SPREAD
    held = fitted([row for row in FOUNDRY if not is_fitted(row)])
    assert (max(0.0, round(held.hidden, 2)), round(1 - exposed[0], 2)) == HIDDEN_SPREAD


def test_half_of_the_rows_are_held() -> None:
    assert sum(is_fitted(row) for row in FOUNDRY) == 38
    assert not any(is_fitted(row) for row in TITAN)


def test_the_terms_of_the_fit_are_those_of_the_product() -> None:
    """Without what no phase can hide, which is little on these rows."""
    constants = Law(
        products=PRODUCTS_SHARE, attention=ATTENTION_SHARE, elementwise=ELEMENTWISE_SHARE, hidden=HIDDEN_SHARE
    )
    for row in (*TITAN, *FOUNDRY):
        step = row.predicted.step
        assert isinstance(step, StepTime)
        together_s = float(terms(row) @ constants.coefficients) + optimizer_s(row)
        assert together_s == pytest.approx(step.step_s, rel=0.02), row.words


def test_compiling_leaves_less_than_half_of_the_bytes_and_all_else() -> None:
    """A third of a block's; the loss over 128,256 words is the rest."""
    eager, compiled = terms(TITAN[0]), terms(TITAN[1])
    assert eager[2] / 3 < compiled[2] < eager[2] / 2
    assert (compiled[[0, 1, 3]] == eager[[0, 1, 3]]).all()


# Errors.


def test_a_summary_counts_what_is_close() -> None:
    found = summary([0.1, -0.2, 0.05, -0.15])
    assert found.median == pytest.approx(0.125)
    assert (found.largest, found.close, found.count) == (0.2, 3, 4)


def test_every_pair_differs_by_its_change_alone() -> None:
    pairs = list(differences(OF_FOUNDRY))
    assert {pair.kind for pair in pairs} == set(CHANGES) - {"compiled"}
    for pair in pairs:
        base, changed = pair.base.row.published, pair.changed.row.published
        same = {
            "model": base.model == changed.model,
            "sequence": base.sequence == changed.sequence,
            "gpus": base.gpus == changed.gpus,
        }
        differs = {"more GPUs": "gpus", "longer sequence": "sequence", "larger model": "model"}[pair.kind]
        assert [name for name, is_same in same.items() if not is_same] == [differs]
        assert (base.checkpoint, base.strategy) == (changed.checkpoint, changed.strategy)


def test_the_error_of_a_ratio_is_the_ratio_of_errors() -> None:
    first, second, *_ = OF_TITAN
    errors = second.ratio_errors(first)
    assert errors.product == pytest.approx((1 + second.errors.product) / (1 + first.errors.product) - 1)


def test_the_product_beats_the_constant_on_rows_that_it_has_not_seen_and_on_every_difference() -> None:
    held = summaries([each.errors for each in OF_FOUNDRY if not is_fitted(each.row)])
    assert held["product"].median < held["constant"].median / 2
    pairs = [*differences(OF_FOUNDRY), *differences(OF_TITAN)]
    for kind in CHANGES:
        medians = summaries([pair.errors for pair in pairs if pair.kind == kind])
        assert medians["product"].median < medians["constant"].median, kind


def test_the_range_holds_at_least_four_of_five_held_rows() -> None:
    held = [each.is_inside for each in OF_FOUNDRY if not is_fitted(each.row)]
    assert sum(held) >= 0.8 * len(held)


# The page.


def test_the_page_is_what_the_script_prints() -> None:
    command = [sys.executable, "-m", "tests.bench.analysis.prediction.published"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert printed == page() == PAGE.read_text()


def test_the_page_has_an_error_for_every_row_and_prediction() -> None:
    text = PAGE.read_text()
    for row in (*TITAN, *FOUNDRY):
        lines = [line for line in text.splitlines() if line.startswith(f"| {row.words} |")]
        assert any(line.count(" %") == 2 for line in lines), row.words
    for report in REPORTS.values():
        assert all(each.rows in text for each in report.not_compared)
        assert report.address in text


def test_the_page_of_machines_says_how_wrong_the_product_is() -> None:
    medians = {
        name: summaries([each.errors for each in rows])["product"].median
        for name, rows in {
            "held": [each for each in OF_FOUNDRY if not is_fitted(each.row)],
            "titan": OF_TITAN,
        }.items()
    }
    words = f"median error on rows of the same program that were not fitted is {100 * medians['held']:.1f} %"
    machines = " ".join((PAGE.parents[1] / "reference" / "machines.md").read_text().split())
    assert words in machines
    assert f"on another program and GPU predictions were [{100 * medians['titan']:.0f} % too high]" in machines
