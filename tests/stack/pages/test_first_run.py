"""During the first run of all, while no result is known, each page shows what there is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dashboards.board import BOARDS
from tests.stack.pages.asking import Page, rendered
from tests.stack.pages.past import PART_S, Past, made_past

pytestmark = [pytest.mark.stack, pytest.mark.timeout(120)]

SCRAPE_S = 60


@pytest.fixture(scope="module", params=["", "east"], ids=["no cluster", "a cluster"])
def past(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    folder = tmp_path_factory.mktemp("past")
    with made_past(folder, nodes=1, scrape_s=SCRAPE_S, parts=("first run",), cluster=request.param) as made:
        yield made


@pytest.mark.parametrize("name", list(BOARDS))
def test_no_panel_is_empty_of_what_is_there(name: str, past: Past) -> None:
    page = Page(
        dashboard=rendered(name),
        prometheus=past.prometheus,
        end_s=past.end_of("first run"),
        back_s=PART_S - 2 * SCRAPE_S,
        scrape_s=SCRAPE_S,
        chosen={},
    )
    assert page.empty() == set()
