"""Published rows: they are complete and copied right, and the page has every error."""

from __future__ import annotations

import subprocess
import sys

import pytest
from msgspec.structs import replace

from tests.bench.analysis.prediction.published.comparison import (
    CHANGES,
    Compared,
    compare_across,
    compare_scale,
    compare_within,
    differences,
    summaries,
    summary,
)
from tests.bench.analysis.prediction.published.law import Law, fitted, held_out, terms
from tests.bench.analysis.prediction.published.page import PAGE, WITHIN_GPUS, page
from tests.bench.analysis.prediction.published.rows import FILES, Report, read_report, rows_of

REPORTS = {report.report: report for report in map(read_report, FILES)}
TITAN, FOUNDRY = rows_of(REPORTS["torchtitan"]), rows_of(REPORTS["llm-foundry"])


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


# The law.


def test_the_law_returns_the_rate_of_rows_that_obey_it() -> None:
    row = FOUNDRY[0]
    law = Law(products=1.5, attention=5.0, passes=100.0, communication=0.5)
    products, attention, passes, communication = terms(row)
    time_s = 1.5 * products + 5.0 * attention + 100.0 * passes + 0.5 * communication
    assert law.tokens_per_second_per_gpu(row) == pytest.approx(1 / time_s)
    assert law.products_share == pytest.approx(2 / 3)
    assert law.attention_share == pytest.approx(0.2)


def test_the_first_term_is_six_flops_a_weight_and_two_more_where_backward_repeats() -> None:
    row = next(row for row in FOUNDRY if row.published.checkpoint == "full")
    blocks, head = row.shape.layers * row.shape.block_parameters(), row.shape.width * row.shape.vocabulary
    assert terms(row)[0] == pytest.approx((8 * blocks + 6 * head) / row.peak.flops_per_second)


def test_compiling_leaves_a_third_of_the_passes_and_all_else() -> None:
    eager, compiled = terms(TITAN[0]), terms(TITAN[1])
    assert compiled[2] == pytest.approx(eager[2] / 3)
    assert (compiled[[0, 1, 3]] == eager[[0, 1, 3]]).all()


def test_a_fit_has_not_seen_the_model_that_it_predicts() -> None:
    row = FOUNDRY[0]
    unseen = [each for each in FOUNDRY if each.published.model != row.published.model]
    assert held_out(row, FOUNDRY) == fitted(unseen) != fitted(FOUNDRY)


# Errors.


def test_a_summary_counts_what_is_close() -> None:
    found = summary([0.1, -0.2, 0.05, -0.15])
    assert found.median == pytest.approx(0.125)
    assert (found.largest, found.close, found.count) == (0.2, 3, 4)


def test_every_pair_differs_by_its_change_alone() -> None:
    pairs = list(differences(compare_within(FOUNDRY)))
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
    first, second, *_ = compare_across(TITAN, FOUNDRY)
    errors = second.ratio_errors(first)
    assert errors.law == pytest.approx((1 + second.errors.law) / (1 + first.errors.law) - 1)


def _median(rows: list[Compared], name: str) -> float:
    return summaries([each.errors for each in rows])[name].median


def test_the_law_beats_the_constant_on_rows_that_it_has_not_seen() -> None:
    within, larger = compare_within(FOUNDRY), compare_scale(FOUNDRY, WITHIN_GPUS)
    assert _median(within, "law") < _median(within, "constant")
    assert _median(larger, "law") < _median(larger, "constant")
    pairs = [*differences(within), *differences(compare_across(TITAN, FOUNDRY))]
    for kind in CHANGES:
        medians = summaries([pair.errors for pair in pairs if pair.kind == kind])
        assert medians["law"].median < medians["constant"].median, kind


# The page.


def test_the_page_is_what_the_script_prints() -> None:
    command = [sys.executable, "-m", "tests.bench.analysis.prediction.published"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert printed == page() == PAGE.read_text()


def test_the_page_has_an_error_for_every_row_and_prediction() -> None:
    text = PAGE.read_text()
    for row in (*TITAN, *FOUNDRY):
        lines = [line for line in text.splitlines() if line.startswith(f"| {row.words} |")]
        assert any(line.count(" %") == 3 for line in lines), row.words
    for report in REPORTS.values():
        assert all(each.rows in text for each in report.not_compared)
        assert report.address in text


def test_the_page_of_machines_says_how_wrong_the_product_is() -> None:
    errors = [each.errors.product for each in (*compare_across(TITAN, FOUNDRY), *compare_within(FOUNDRY))]
    words = f"all {len(errors)} rates are predicted too high, by {min(errors):.0%} to {max(errors):.0%}"
    machines = (PAGE.parents[1] / "reference" / "machines.md").read_text()
    assert words.replace("%", " %").replace(" % to", " to") in " ".join(machines.split())
