"""`observatory runbook`: the page of an alert, however its name is written, and the list of all."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cli import main
from tests.dashboards.alert_links import ALERTS

PAGE = Path(__file__).parents[4] / "docs" / "runbooks" / "suite-case-failed.md"


@pytest.mark.parametrize("name", ["SuiteCaseFailed", "suite-case-failed", "suite-case-failed.md", "suitecasefailed"])
def test_the_page_of_an_alert_is_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["runbook", name]) == 0
    assert capsys.readouterr().out == PAGE.read_text()


def test_without_a_name_each_alert_is_listed_with_what_it_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["runbook"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(ALERTS, key=lambda name: ALERTS[name].runbook)
    assert all(len(line.split()) > 4 for line in lines)


def test_an_unknown_name_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["runbook", "SuiteCasesFailed"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert 'there is no runbook of "SuiteCasesFailed"; did you mean "SuiteCaseFailed"?' in line
