"""The page of a run that has ended within the time range tells what it was, and its last values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.serve.demo import RUN
from collectors.metrics.agent import RUN_INFO, RUN_LAST_PROGRESS
from collectors.metrics.rank import STEP_SECONDS
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.dashboards.boards import board
from tests.stack.alerts.rehearsal import Rehearsal, shown
from tests.stack.pages.asking import Answer, Page, rendered
from tests.stack.pages.past import OTHER_RUN, PART_S, Part, Past, made_past
from tests.support.grafana_expressions import with_choices

pytestmark = [pytest.mark.stack, pytest.mark.timeout(120)]

SCRAPE_S = 60
HEADER = [panel.title for panel in board("one-run").panels if panel.document["gridPos"]["h"] == 4]


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    parts: tuple[Part, ...] = ("between runs", "two runs", "after the runs")
    with made_past(tmp_path_factory.mktemp("past"), nodes=1, scrape_s=SCRAPE_S, parts=parts) as made:
        yield made


def _answers(past: Past, run: str) -> dict[str, list[Answer]]:
    """What the page asks of a run, by panel; it looks back from minutes after the run's end to before its begin."""
    page = Page(
        dashboard=rendered("one-run"),
        prometheus=past.prometheus,
        end_s=past.end_of("after the runs"),
        back_s=5 * PART_S // 2,
        scrape_s=SCRAPE_S,
        chosen={"run": run},
    )
    answers: dict[str, list[Answer]] = {}
    for answer in page.answers():
        answers.setdefault(answer.panel, []).append(answer)
    return answers


@pytest.mark.parametrize("run", [RUN, OTHER_RUN])
def test_the_header_tells_of_a_run_that_has_ended(run: str, past: Past) -> None:
    answers = _answers(past, run)
    assert [title for title in HEADER if not any(one.series for one in answers[title])] == []
    (told, *_) = (one.series for one in answers["The run"])
    assert [series["run"] for series in told] == [run]


# A run that had the slot until its fourth minute, another that has had it since, and a result that came in between.

ABOUT = {"strategy": "ddp", "ranks": "1", "series": "s", "slot": "0"}
RESULT = {"strategy": "ddp", "ranks": "1", "device": "cuda", "precision": "bf16", "series": "s"}
SERIES = {
    **shown(RUN_INFO, "1x3 stale", **ABOUT, run="a"),
    **shown(RUN_INFO, "_x3 1x9", **ABOUT, run="b"),
    **shown(RUN_LAST_PROGRESS, "30x3 stale", run="a", slot="0"),
    **shown(RUN_LAST_PROGRESS, "_x3 300x9", run="b", slot="0"),
    **shown(STEP_SECONDS, "3x3 8x9", slot="0", rank="0"),
    **shown(RUN_STEP_SECONDS.statistic("median"), "2x3 1x9", **RESULT),
}


def _queries(title: str) -> list[str]:
    panel = board("one-run").panel(title)
    return [query.expression for query in panel.queries]


@pytest.mark.parametrize(
    ("title", "run", "expected"),
    [
        ("Step, median rank", "a", 3.0),
        ("Step, median rank", "b", 8.0),
        ("Step vs result", "a", 0.5),
        ("Step vs result", "b", 7.0),
    ],
)
def test_the_last_value_of_a_run_is_its_own_though_another_has_its_slot(
    title: str, run: str, expected: float, tmp_path: Path
) -> None:
    (expression,) = _queries(title)
    Rehearsal(series=SERIES, folder=tmp_path).gives(
        f"max by (rank) ({with_choices(expression, run=run)})", {"{}": expected}, at_minutes=8
    )


@pytest.mark.parametrize(("run", "state", "since_s"), [("a", 0.0, {}), ("b", 1.0, {"{}": 180.0})])
def test_the_table_says_whether_the_run_goes_on(
    run: str, state: float, since_s: dict[str, float], tmp_path: Path
) -> None:
    is_on, last_step = _queries("The run")
    rehearsal = Rehearsal(series=SERIES, folder=tmp_path)
    rehearsal.gives(f"max by (run) ({with_choices(is_on, run=run)})", {f'{{run="{run}"}}': state}, at_minutes=8)
    rehearsal.gives(
        f"max without (run, about, strategy, ranks) ({with_choices(last_step, run=run)})", since_s, at_minutes=8
    )
