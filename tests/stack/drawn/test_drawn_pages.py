"""All pages in all states, drawn with Grafana's own components: what stands on them is what it says, and is not cut.

Time series, numbers and tables are Grafana's. Bars of states and heatmaps are stand-ins with the same data, as Grafana
publishes no components of them; so is the frame of the page.
"""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from typing import Any

import pytest

from tests.dashboards.boards import all_boards, board
from tests.stack.drawn.drawing import Job, drawn, given, needed, with_open_rows
from tests.stack.drawn.states import STATES, State
from tests.stack.pages.asking import Page, rendered

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(1200)]

NAMES = [dashboard.name for dashboard in all_boards()]
NARROW, WIDE = 1280, 1600
DRAWN = [*((state, name, NARROW) for state in STATES for name in NAMES), *(("demo", name, WIDE) for name in NAMES)]
"""Whatever fits on the narrow page fits on the wide one, which is drawn where there is most on it."""
TEXTS = {"Case", "Cause", "What", "Hardware", "Name", "System", "Kernel", "Python", "Run and rank"}
"""Columns whose texts may be longer than any column: the rest of one is shown where the mouse is."""
SMALLEST_PX = 12
COLOURED = 30
"""How far the parts of a colour lie apart that is not grey."""

Measured = dict[str, Any]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, int], list[Measured]]:
    """What was measured of the panels of each state's pages."""
    needed()
    folder = tmp_path_factory.mktemp("drawn")
    with ExitStack() as started:
        for name, made in STATES.items():
            (home := folder / name).mkdir()
            state = started.enter_context(made(home))
            for dashboard in NAMES:
                (folder / f"{name} {dashboard}.json").write_text(json.dumps(given(_page(state, dashboard))))
            started.close()
    jobs = [Job(page=folder / f"{state} {name}.json", width=width) for state, name, width in DRAWN]
    return dict(zip(DRAWN, drawn(jobs), strict=True))


def _page(state: State, name: str) -> Page:
    return Page(
        dashboard=with_open_rows(rendered(name)),
        prometheus=state.prometheus,
        end_s=state.end_s,
        back_s=state.back_s,
        scrape_s=state.scrape_s,
        chosen={},
    )


every_page = pytest.mark.parametrize(("state", "name", "width"), DRAWN)
Pages = dict[tuple[str, str, int], list[Measured]]


def _of_type(panels: list[Measured], kind: str) -> list[Measured]:
    return [panel for panel in panels if panel["type"] == kind]


def _rows(panel: Measured) -> list[dict[str, str]]:
    table = panel["table"] or {"columns": [], "rows": []}
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


@every_page
def test_a_cell_without_a_value_is_a_dash(state: str, name: str, width: int, pages: Pages) -> None:
    sentences = {panel.absent for dashboard in all_boards() for panel in dashboard.all_panels}
    cells = [
        (panel["title"], column, cell)
        for panel in _of_type(pages[state, name, width], "table")
        for row in _rows(panel)
        for column, cell in row.items()
    ]
    assert [cell for cell in cells if not cell[-1] or cell[-1] in sentences] == []


@every_page
def test_a_number_without_data_is_grey_and_says_no_sentence(state: str, name: str, width: int, pages: Pages) -> None:
    for panel in _of_type(pages[state, name, width], "stat"):
        if all(value["last"] is None for value in panel["values"]):
            shown = [(number["text"].strip(), _is_coloured(number["background"])) for number in panel["numbers"]]
            assert shown == [("-", False)], panel["title"]
        assert re.search(r"When empty: .+\.$", panel["description"]), panel["title"]


def _is_coloured(background: str) -> bool:
    colours = [
        [int(part) for part in re.findall(r"\d+", found)[:3]] for found in re.findall(r"rgba?\([^)]*\)", background)
    ]
    return any(max(parts) - min(parts) > COLOURED for parts in colours)


@every_page
def test_no_title_no_column_and_no_number_is_cut(state: str, name: str, width: int, pages: Pages) -> None:
    found: list[tuple[Any, ...]] = []
    for panel in pages[state, name, width]:
        title = panel["title"]
        found += [(title, "its title")] if panel["is_title_cut"] else []
        found += [(title, number) for number in panel.get("numbers", []) if _is_hard_to_read(number)]
        if table := panel.get("table"):
            found += [(title, "the table", table["width_px"])] if table["width_px"] > table["room_px"] + 1 else []
            found += [(title, header) for header in table["cut_headers"]]
            found += [(title, *cell) for cell in table["cut_cells"] if cell[0] not in TEXTS]
    assert found == []


@every_page
def test_no_name_of_a_line_and_no_tick_of_an_axis_is_cut(state: str, name: str, width: int, pages: Pages) -> None:
    found = []
    for panel in _of_type(pages[state, name, width], "timeseries"):
        found += [(panel["title"], name) for name in panel["legend"]["cut_names"]]
        found += [(panel["title"], tick) for axis in panel["axes"] for tick in axis["cut_ticks"]]
    assert found == []


def _is_hard_to_read(number: Measured) -> bool:
    return bool(number["text"].strip()) and (number["is_cut"] or number["smallest_px"] < SMALLEST_PX)


@every_page
def test_no_axis_goes_beyond_its_unit(state: str, name: str, width: int, pages: Pages) -> None:
    found = []
    for panel in _of_type(pages[state, name, width], "timeseries"):
        for axis in panel["axes"]:
            least, most = axis["least"], axis["most"]
            if least is None or most is None:
                continue
            ends = [float(at) for at in axis["at"]]
            # A share of a whole ends at the whole, and nothing is drawn at a hundredth of its axis' height.
            if axis["unit"].startswith("percentunit") and most <= 1 and max(ends) > 1.001:
                found.append((panel["title"], max(ends), most))
            if most - least == 0 == most and max(ends) > 1:
                found.append((panel["title"], max(ends), most))
    assert found == []


@pytest.mark.parametrize("state", ["demo", "three CPU runs", "30 nights"])
def test_the_parts_of_a_bubble_add_up(state: str, pages: Pages) -> None:
    titles = [panel.title for panel in board("where-does-the-pipeline-wait").panels if panel.kind == "stat"]
    shown = {panel["title"]: panel for panel in pages[state, "where-does-the-pipeline-wait", NARROW]}
    bubble, *parts = (sum(value["last"] or 0 for value in shown[title]["values"]) for title in titles)
    assert bubble > 0
    assert sum(parts) == pytest.approx(bubble, abs=0.005)


@pytest.mark.parametrize("state", ["first run", "demo", "50 nodes"])
def test_a_gpu_that_answers_is_allocated_or_idle(state: str, pages: Pages) -> None:
    titles = ("GPUs responding", "Allocated GPUs", "Idle GPUs")
    assert set(titles) <= {panel.title for panel in board("fleet").panels}
    shown = {panel["title"]: panel["values"] for panel in pages[state, "fleet", NARROW]}
    answering, allocated, idle = (shown[title][0]["last"] for title in titles)
    assert answering == allocated + idle > 0


@pytest.mark.parametrize("state", ["first run", "demo"])
def test_bars_of_states_agree_with_the_table_of_what_is_not_sound(state: str, pages: Pages) -> None:
    shown = {panel["title"]: panel for panel in pages[state, "fleet", NARROW]}
    listed = {f"{row['Node']} GPU {row['GPU']}": row["State"] for row in _rows(shown["Unhealthy GPUs now"])}
    bars = {name: word for name, word in shown["Unhealthy GPUs over time"]["states"] if word is not None}
    assert listed
    assert bars == listed
