"""A part of memory in one cell."""

from __future__ import annotations

import pytest

from bench.report.run.run_rows import memory_cell
from bench.report.run.summary import print_summaries
from bench.results.estimate import estimate
from collectors.metrics.results import RUN_MEMORY_ACCOUNT_BYTES, RUN_MEMORY_PREDICTED_RATIO
from tests.bench.made.examples import make_summary


def _cell(ratio: float) -> str:
    found = (
        estimate(RUN_MEMORY_ACCOUNT_BYTES, [7 * 2**19], account="measured", part="parameters"),
        estimate(RUN_MEMORY_PREDICTED_RATIO, [ratio], part="parameters"),
    )
    return memory_cell(make_summary(estimates=found), "parameters")


def test_a_law_that_is_off_by_next_to_nothing_is_off_by_plus_0() -> None:
    assert _cell(0.99999) == "3.50 MiB, predicted +0.0 %"


def test_a_law_that_is_too_low_keeps_its_sign() -> None:
    assert _cell(0.95) == "3.50 MiB, predicted -5.0 %"


@pytest.mark.parametrize("parts", [(), ("other",), ("other", "unexplained")], ids=len)
def test_rows_of_what_outlives_a_step_are_there_where_a_run_has_any(
    parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    found = tuple(estimate(RUN_MEMORY_ACCOUNT_BYTES, [2**20], account="measured", part=part) for part in parts)
    print_summaries([make_summary(estimates=found)], "table", has_details=True)
    rows = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("memory: ")]
    assert [row for row in rows if row in ("other", "unexplained")] == list(parts)
