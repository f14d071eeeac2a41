"""The page of the nightly has a value in each column of its table of series."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dashboards.boards import board
from tests.stack.pages.asking import Page, rendered
from tests.stack.pages.past import PART_S, Part, made_past

pytestmark = [pytest.mark.stack, pytest.mark.timeout(120)]

SCRAPE_S = 60
PART: Part = "after the runs"
ON_EACH_ROW = ("Step", "Step: usual", "Step: change", "Newest run", "Age")


def test_each_series_has_what_is_usual_of_it_and_how_its_newest_run_ended(tmp_path: Path) -> None:
    (table,) = (one for one in board("nightly").panels if one.title.startswith("Series: "))
    with made_past(tmp_path, nodes=1, scrape_s=SCRAPE_S, parts=(PART,)) as past:
        page = Page(
            dashboard=rendered("nightly"),
            prometheus=past.prometheus,
            end_s=past.end_of(PART),
            back_s=PART_S - 2 * SCRAPE_S,
            scrape_s=SCRAPE_S,
            chosen={},
        )
        answers = [answer.series for answer in page.answers() if answer.panel == table.title]
    columns = [query.legend for query in table.queries]
    rows = {name: {one["series"] for one in found} for name, found in zip(columns, answers, strict=True)}
    assert [name for name in columns if not rows[name]] == []
    assert [name for name in ON_EACH_ROW if rows[name] != rows["Step"]] == []
