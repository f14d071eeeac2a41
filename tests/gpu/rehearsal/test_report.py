"""The table of all checks: rows, counts, what is not run, and what a rehearsal must say of itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gpu.check import Check, Finding, Verdict, figure, holds, within
from tests.gpu.report import REHEARSAL, WIDTHS, counted, table_markdown, table_text
from tests.gpu.runner import Result
from tests.gpu.session import Session

ABOUT = {"device": "1 x NVIDIA H200", "commit": "abc", "torch": "2.11.0+cu130"}


def _nothing(session: Session) -> Iterator[Finding]:
    yield from ()


def _a_check(name: str) -> Check:
    return Check(name=name, run=_nothing, tells=f"what {name} tells", expected="so")


def _a_result(name: str, verdict: Verdict, *findings: Finding, reason: str = "", **changes: object) -> Result:
    known: dict[str, object] = {"elapsed_s": 12.4, "started_ns": 1, "commit": "abc", "is_rehearsal": False, **changes}
    return Result(name=name, verdict=verdict, reason=reason, findings=findings, **known)  # type: ignore[arg-type]


CHECKS = [_a_check("one"), _a_check("two"), _a_check("three")]
RESULTS = {
    "one": _a_result("one", "off", within("rate", 3, high=2, unit="GB/s", source="PCI|e"), figure("step", 5.25)),
    "two": _a_result("two", "skipped", reason="it needs 2 GPUs and 1 can be seen"),
}


def test_each_finding_has_a_row_with_what_was_seen_and_expected() -> None:
    text = table_text(CHECKS, RESULTS, ABOUT)
    (row,) = [line for line in text.splitlines() if " rate " in line]
    assert row.split() == ["rate", "3", "GB/s", "at", "most", "2", "GB/s", "off"]


def test_the_reason_of_what_was_skipped_stands_in_the_table() -> None:
    assert "it needs 2 GPUs and 1 can be" in table_text(CHECKS, RESULTS, ABOUT)


def test_no_line_of_the_text_is_wider_than_its_columns() -> None:
    lines = table_text(CHECKS, RESULTS, ABOUT).splitlines()
    assert max(map(len, lines)) <= sum(WIDTHS) + len(WIDTHS) - 1


def test_verdicts_are_counted_worst_first_with_what_was_not_run() -> None:
    assert counted(CHECKS, RESULTS) == "3 checks: 1 off, 1 skipped, 1 not run"


def test_markdown_names_device_versions_and_the_source_of_a_bound() -> None:
    text = table_markdown(CHECKS, RESULTS, ABOUT)
    assert text.startswith("# Checks on 1 x NVIDIA H200\n")
    assert "- torch: 2.11.0+cu130\n" in text
    assert "|  | rate | 3 GB/s | at most 2 GB/s | off | PCI\\|e |" in text


def test_every_row_of_markdown_has_the_same_cells() -> None:
    rows = [line for line in table_markdown(CHECKS, RESULTS, ABOUT).splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {7}


@pytest.mark.parametrize("table", [table_text, table_markdown])
def test_a_rehearsal_says_that_no_figure_is_of_a_gpu(table: object) -> None:
    results = {"one": _a_result("one", "seen", is_rehearsal=True)}
    assert callable(table)
    assert REHEARSAL in table(CHECKS, results, ABOUT)
    assert REHEARSAL not in table(CHECKS, RESULTS, ABOUT)


def test_results_of_several_commits_are_told() -> None:
    results = {"one": _a_result("one", "ok"), "two": _a_result("two", "ok", commit="def")}
    assert "results are of several commits: abc, def" in table_text(CHECKS, results, ABOUT)


@pytest.mark.parametrize(
    ("low", "high", "value", "verdict", "expected"),
    [
        (1, 2, 2, "ok", "1 to 2 s"),
        (1, 2, 2.001, "off", "1 to 2 s"),
        (None, 0.5, 0.5, "ok", "at most 0.5 s"),
        (3, None, 2.9, "off", "at least 3 s"),
        (3, None, float("nan"), "off", "at least 3 s"),
    ],
)
def test_a_bound_holds_its_ends_and_nothing_beyond(
    low: float | None, high: float | None, value: float, verdict: str, expected: str
) -> None:
    found = within("time", value, low=low, high=high, unit="s", source="a book")
    assert (found.verdict, found.expected) == (verdict, expected)


def test_a_verdict_wants_a_bound() -> None:
    with pytest.raises(ValueError, match="neither low nor high"):
        within("time", 1.0, source="none")
    with pytest.raises(ValueError, match="low 2 is above high 1"):
        within("time", 1.0, low=2, high=1, source="none")


def test_what_is_no_number_is_as_it_must_be_or_off() -> None:
    assert [holds("a", so, seen="", expected="", source="").verdict for so in (True, False)] == ["ok", "off"]
