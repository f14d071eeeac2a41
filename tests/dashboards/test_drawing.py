"""Each kind of panel in Grafana's JSON, where it lies, and what it leads to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from collectors.metrics.agent import RUN_INFO
from collectors.metrics.metric import STATISTICS, Statistic
from collectors.metrics.rank import PHASE_SECONDS, STEP_SECONDS
from collectors.metrics.results import RUN_MFU
from dashboards.boards.choices import CLUSTER
from dashboards.grafana.document import to_json
from dashboards.model import (
    Annotation,
    Column,
    Dashboard,
    Heatmap,
    Link,
    Panel,
    Query,
    Row,
    Stat,
    States,
    Step,
    Steps,
    Table,
    TimeSeries,
    Variable,
    Word,
    falling,
    rising,
)
from tests.dashboards import grafana_lint

TO_RUN = Link(title="This run", dashboard="one-run", choices={"run": "run"}, kept=("cluster",))


def _query(legend: str = "{{run}}", statistic: Statistic | None = None) -> Query:
    return Query(metric=STEP_SECONDS, expression=STEP_SECONDS.name, legend=legend, unit="seconds", statistic=statistic)


NOW = Stat(title="Now", queries=(_query(),))


def _shown(*panels: Panel, rows: tuple[Row, ...] = (), **more: Any) -> dict[str, Any]:
    dashboard = Dashboard(
        name="one", title="One?", summary="All kinds.", variables=(CLUSTER,), panels=panels, rows=rows, **more
    )
    found: dict[str, Any] = json.loads(to_json(dashboard))
    assert grafana_lint.faults(found) == []
    return found


def _panel(panel: Panel) -> dict[str, Any]:
    (found,) = _shown(panel)["panels"]
    assert isinstance(found, dict)
    return found


def _overrides(panel: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        override["matcher"]["options"]: {look["id"]: look["value"] for look in override["properties"]}
        for override in panel["fieldConfig"]["overrides"]
    }


def _thresholds(panel: dict[str, Any]) -> list[tuple[float | None, str]]:
    return [(step["value"], step["color"]) for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]


# What panels of all kinds have.


def test_a_panel_has_one_unit() -> None:
    ratio = Query(metric=RUN_MFU, expression=RUN_MFU.name, legend="", unit="ratio")
    with pytest.raises(ValueError, match=r'^panel "both" has the units ratio, seconds; it must have one$'):
        Stat(title="both", queries=(_query(), ratio))


def test_a_panel_is_described_by_its_note_and_its_metrics_once_each() -> None:
    panel = _panel(Stat(title="twice", queries=(_query(), _query()), note="Of all runs."))
    absent = "When empty: Nothing in this time range, or nothing of what is chosen above."
    assert panel["description"] == f"Of all runs.\n\n`{STEP_SECONDS.name}`: {STEP_SECONDS.help}\n\n{absent}"


# Lines over time.


@pytest.mark.parametrize(("worst", "is_falling"), [("highest", True), ("lowest", False)])
def test_the_worst_series_stands_first_by_its_value_now(worst: Any, is_falling: bool) -> None:
    legend = _panel(TimeSeries(title="Step", queries=(_query(),), worst=worst))["options"]["legend"]
    assert (legend["calcs"], legend["sortBy"], legend["sortDesc"]) == (["last"], "Last", is_falling)


@pytest.mark.parametrize(
    ("legend", "width", "place"),
    [
        ("rank {{rank}}", 12, "right"),
        ("communicates, nothing computes", 12, "right"),
        ("{{name}}", 12, "bottom"),
        ("{{suite}} {{outcome}} ({{run}})", 12, "bottom"),
        ("{{suite}} {{outcome}} ({{run}})", 24, "right"),
        ("a name that nobody can read beside the lines", 12, "bottom"),
    ],
)
def test_names_that_would_be_cut_beside_the_lines_stand_below_them(legend: str, width: int, place: str) -> None:
    lines = TimeSeries(title="Step", queries=(_query(legend),), worst="highest", legend="right", width=width)
    assert _panel(lines)["options"]["legend"]["placement"] == place


@pytest.mark.parametrize(("unit", "decimals"), [("count", 0), ("errors", 0), ("seconds", None), ("tasks", None)])
def test_an_axis_of_what_is_counted_has_whole_numbers(unit: str, decimals: int | None) -> None:
    counted = Query(metric=RUN_INFO, expression="a", legend="runs", unit=unit)
    panel = _panel(TimeSeries(title="Runs", queries=(counted,), worst="highest"))
    assert panel["fieldConfig"]["defaults"].get("decimals") == decimals


def test_an_axis_begins_at_zero_where_nothing_lies_below() -> None:
    above = TimeSeries(title="Step", queries=(_query(),), worst="highest")
    below = TimeSeries(title="Step", queries=(_query(),), worst="highest", goes_below_zero=True)
    assert [_panel(one)["fieldConfig"]["defaults"].get("min") for one in (above, below)] == [0, None]


def test_the_axis_of_a_band_begins_where_the_band_does() -> None:
    queries = tuple(_query(statistic=which) for which in STATISTICS)
    panel = _panel(TimeSeries(title="Step", queries=queries, worst="highest", banded=True))
    assert "min" not in panel["fieldConfig"]["defaults"]


def test_neighbours_differ_in_colour() -> None:
    panel = _panel(TimeSeries(title="Step", queries=(_query(),), worst="highest"))
    assert panel["fieldConfig"]["defaults"]["color"]["mode"] == "palette-classic"


def test_an_area_is_painted_only_where_values_are_not_good() -> None:
    panel = _panel(TimeSeries(title="Step", queries=(_query(),), worst="highest", steps=rising(1, 2)))
    assert _thresholds(panel) == [(None, "transparent"), (1.0, "orange"), (2.0, "red")]


def test_the_ends_of_intervals_of_several_series_are_dashed_and_their_middles_are_not() -> None:
    panel = _panel(
        TimeSeries(
            title="Step",
            queries=(_query(statistic="median"), _query(statistic="low"), _query(statistic="high")),
            worst="highest",
        )
    )
    looks = _overrides(panel)
    assert looks.pop("number") == {"noValue": "-"}
    assert set(looks) == {"B", "C"}
    assert all(one["custom.lineStyle"]["fill"] == "dash" for one in looks.values())
    assert all(one["custom.hideFrom"]["legend"] for one in looks.values())
    assert all(one["color"]["mode"] == "fixed" for one in looks.values())


def test_a_reference_is_a_dashed_line_that_lies_on_no_stack() -> None:
    parts = Query(metric=RUN_MFU, expression="parts", legend="{{part}}", unit="ratio")
    expected = Query(metric=RUN_MFU, expression="expected", legend="expected", unit="ratio", is_reference=True)
    looks = _overrides(_panel(TimeSeries(title="Parts", queries=(parts, expected), worst="highest", stacked=True)))
    assert set(looks) == {"number", "B"}
    assert looks["B"]["custom.stacking"]["mode"] == "none"
    assert looks["B"]["custom.lineStyle"]["fill"] == "dash"


def test_the_interval_of_one_series_is_a_band_from_its_high_end_to_its_low_one() -> None:
    panel = _panel(
        TimeSeries(
            title="Step",
            queries=(_query(statistic="median"), _query("low end", "low"), _query("high end", "high")),
            worst="highest",
            banded=True,
        )
    )
    looks = _overrides(panel)
    assert looks["C"]["custom.fillBelowTo"] == "low end"
    assert "custom.fillBelowTo" not in looks["B"]


def test_parts_of_a_whole_lie_on_each_other() -> None:
    query = Query(metric=PHASE_SECONDS, expression=PHASE_SECONDS.name, legend="{{phase}}", unit="seconds")
    custom = _panel(TimeSeries(title="Phases", queries=(query,), worst="highest", stacked=True))["fieldConfig"][
        "defaults"
    ]["custom"]
    assert custom["stacking"]["mode"] == "normal"
    assert custom["fillOpacity"] > 0


# What values mean.


@pytest.mark.parametrize(
    ("steps", "colours"),
    [
        (rising(0.1, 0.3), [(None, "green"), (0.1, "orange"), (0.3, "red")]),
        (rising(0.1), [(None, "green"), (0.1, "orange")]),
        (falling(0.9, 0.8), [(None, "red"), (0.8, "orange"), (0.9, "green")]),
        (falling(0.9), [(None, "orange"), (0.9, "green")]),
    ],
)
def test_a_number_has_the_colour_of_the_last_step_below_it(
    steps: Steps, colours: list[tuple[float | None, str]]
) -> None:
    panel = _panel(Stat(title="Now", queries=(_query(),), steps=steps))
    assert _thresholds(panel) == colours
    assert panel["options"]["colorMode"] == "background"
    assert panel["fieldConfig"]["defaults"]["color"] == {"mode": "thresholds"}


def test_steps_that_do_not_rise_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must rise; they are 0\.9, 0\.8"):
        Steps(below="bad", steps=(Step(value=0.9, colour="good"), Step(value=0.8, colour="bad")))


def test_a_number_that_is_neither_good_nor_bad_has_no_colour() -> None:
    panel = _panel(Stat(title="Now", queries=(_query(),)))
    assert panel["options"]["colorMode"] == "value"
    assert panel["fieldConfig"]["defaults"]["color"] == {"mode": "fixed", "fixedColor": "text"}


def test_a_number_is_of_now_and_not_the_last_that_was_there() -> None:
    panel = _panel(Stat(title="Now", queries=(_query(),)))
    assert panel["options"]["reduceOptions"]["calcs"] == ["last"]
    assert [(target["instant"], target["range"]) for target in panel["targets"]] == [(True, False)]


def test_a_bar_of_states_is_as_fine_as_it_may_be() -> None:
    coarse = States(title="State", queries=(_query(),), words=(), least_step_s=60)
    assert _panel(coarse)["interval"] == "60s"


def test_a_state_is_a_word_with_a_colour() -> None:
    query = Query(metric=RUN_INFO, expression=RUN_INFO.name, legend="{{run}}", unit="info")
    words = (Word(value=0, text="sound", colour="good"), Word(value=1, text="lost", colour="bad"))
    panel = _panel(States(title="GPUs", queries=(query,), words=words))
    (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
    assert panel["type"] == "state-timeline"
    assert {value: (word["text"], word["color"]) for value, word in mapping["options"].items()} == {
        "0": ("sound", "green"),
        "1": ("lost", "red"),
    }


def test_a_heatmap_is_of_the_buckets_that_prometheus_has() -> None:
    panel = _panel(Heatmap(title="Steps", queries=(_query("{{le}}"),)))
    assert panel["type"] == "heatmap"
    assert panel["options"]["calculate"] is False
    assert [target["format"] for target in panel["targets"]] == ["heatmap"]


# Tables.

RUNS = Table(
    title="Runs",
    columns=(
        Column(name="Run", source="run", link=TO_RUN),
        Column(name="Step", source=_query(), steps=rising(1.0)),
        Column(name="Longest", source=_query()),
        Column(name="State", source="state", colours={"failed": "bad"}),
    ),
    sorted_by=("Step",),
)


def test_a_table_has_its_columns_in_their_order_and_no_others() -> None:
    panel = _panel(RUNS)
    merged, kept, organised = panel["transformations"]
    fields = ["run", "Value #A", "Value #B", "state"]
    assert merged["id"] == "merge"
    assert kept["options"]["include"]["names"] == fields
    assert organised["options"]["indexByName"] == {field: place for place, field in enumerate(fields)}
    assert [organised["options"]["renameByName"][field] for field in fields] == ["Run", "Step", "Longest", "State"]


def test_the_value_of_a_tables_only_query_has_no_letter() -> None:
    panel = _panel(
        Table(title="Runs", columns=(Column(name="Run", source="run"), Column(name="Step", source=_query())))
    )
    assert panel["transformations"][1]["options"]["include"]["names"] == ["run", "Value"]


def test_a_table_asks_for_now_and_is_sorted() -> None:
    panel = _panel(RUNS)
    assert {(target["instant"], target["format"]) for target in panel["targets"]} == {(True, "table")}
    assert panel["options"]["sortBy"] == [{"displayName": "Step", "desc": True}]


def test_a_label_whose_texts_are_numbers_is_shown_and_sorted_as_numbers() -> None:
    size = Column(name="Size", source="size", unit="bytes")
    panel = _panel(
        Table(
            title="Calls",
            columns=(Column(name="Collective", source="collective"), size, Column(name="Step", source=_query())),
            sorted_by=("Collective", "Size"),
            is_falling=False,
        )
    )
    assert [one["id"] for one in panel["transformations"]] == [
        "merge",
        "filterFieldsByName",
        "convertFieldType",
        "organize",
    ]
    (conversion,) = panel["transformations"][2]["options"]["conversions"]
    assert conversion == {"targetField": "size", "destinationType": "number"}
    assert _overrides(panel)["Size"]["unit"] == "bytes"
    assert [one["displayName"] for one in panel["options"]["sortBy"]] == ["Collective", "Size"]


def test_a_cell_has_the_unit_the_colour_and_the_link_of_its_column() -> None:
    looks = _overrides(_panel(RUNS))
    assert looks["Step"]["unit"] == "s"
    assert looks["Step"]["thresholds"]["steps"][1] == {"value": 1.0, "color": "orange"}
    assert looks["State"]["mappings"][0]["options"]["failed"]["color"] == "red"
    (link,) = looks["Run"]["links"]
    kept = "${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"
    assert link["url"] == f'/d/observatory-one-run?{kept}&var-run=${{__data.fields["run"]}}'


def test_what_has_no_value_is_a_dash_and_the_sentence_is_for_a_table_without_rows() -> None:
    table = _panel(RUNS)
    assert table["fieldConfig"]["defaults"]["noValue"] == RUNS.absent
    looks = _overrides(table)
    assert {name: look["noValue"] for name, look in looks.items()} == dict.fromkeys(looks, "-")
    for name in ("Step", "State"):
        special = [one["options"] for one in looks[name]["mappings"] if one["type"] == "special"]
        assert [(one["match"], one["result"]["text"], one["result"]["color"]) for one in special] == [
            ("null+nan", "-", "text"),
            ("empty", "-", "text"),
        ]


def test_a_number_without_a_value_is_a_grey_dash_and_its_sentence_is_in_the_description() -> None:
    panel = _panel(Stat(title="Now", queries=(_query(),), steps=rising(1), absent="Nothing runs."))
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["noValue"] == "-"
    assert {one["options"]["result"]["color"] for one in defaults["mappings"]} == {"#6e6e6e"}
    assert panel["description"].endswith("When empty: Nothing runs.")


def test_a_name_that_is_not_there_is_a_dash() -> None:
    panel = _panel(Stat(title="Who", queries=(_query("rank {{rank}}"),), is_text=True))
    assert [target["legendFormat"] for target in panel["targets"]] == ["rank {{rank}}", "-"]
    assert panel["targets"][1]["expr"] == f"vector(NaN) unless on () ({STEP_SECONDS.name})"
    assert panel["options"]["textMode"] == "name"


def test_a_cell_that_is_neither_good_nor_bad_can_be_read() -> None:
    column = Column(name="Step", source=_query(), steps=rising(1, colour="plain"))
    looks = _overrides(_panel(Table(title="Runs", columns=(column,))))
    assert looks["Step"]["thresholds"]["steps"][0]["color"] == "text"


def test_a_table_that_asks_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match='table "Runs" has no column that asks for anything'):
        Table(title="Runs", columns=(Column(name="Run", source="run"),))


def test_a_table_is_sorted_by_a_column_that_it_has() -> None:
    with pytest.raises(ValueError, match='has no column "Age"; it has: Run, Step'):
        Table(
            title="Runs",
            columns=(Column(name="Run", source="run"), Column(name="Step", source=_query())),
            sorted_by=("Age",),
        )


# The page.


def test_panels_stand_in_lines_that_are_as_high_as_their_highest() -> None:
    shown = _shown(
        Stat(title="A", queries=(_query(),), width=12, height=4),
        Stat(title="B", queries=(_query(),), width=12, height=6),
        TimeSeries(title="C", queries=(_query(),), worst="highest", width=24),
    )
    places = [tuple(panel["gridPos"][key] for key in "xywh") for panel in shown["panels"]]
    assert places == [(0, 0, 12, 4), (12, 0, 12, 6), (0, 6, 24, 8)]


def test_a_collapsed_row_holds_its_panels_and_an_open_one_stands_before_them() -> None:
    panel = Stat(title="A", queries=(_query(),), height=4)
    shown = _shown(
        panel,
        rows=(
            Row(title="Open", panels=(Stat(title="B", queries=(_query(),), height=4),), is_collapsed=False),
            Row(title="Closed", panels=(Stat(title="C", queries=(_query(),)),)),
        ),
    )["panels"]
    assert [(one["title"], one["gridPos"]["y"]) for one in shown] == [("A", 0), ("Open", 4), ("B", 5), ("Closed", 9)]
    assert [one["title"] for one in shown[3]["panels"]] == ["C"]
    assert [one["id"] for one in grafana_lint.all_panels({"panels": shown}, with_rows=True)] == [1, 2, 3, 4, 5]


def test_one_thing_is_chosen_or_all_of_them_with_those_that_lack_the_label() -> None:
    variables = (
        Variable(name="run", label="Run", query="label_values(a, run)", is_single=True, begins_with_last=True),
        Variable(name="rank", label="Rank", query="label_values(a, rank)"),
        Variable(name="worst", label="Worst", query="query_result(sort_desc(a))", is_single=True, ranked_label="name"),
    )
    dashboard = Dashboard(name="one", title="One?", summary="", variables=variables, panels=())
    _, run, rank, worst = json.loads(to_json(dashboard))["templating"]["list"]
    assert (run["multi"], run["includeAll"], run["sort"]) == (False, False, 8)  # Naturally, the last first.
    assert (rank["multi"], rank["includeAll"], rank["allValue"]) == (True, True, ".*")
    assert (worst["sort"], worst["regex"]) == (0, '/name="([^"]*)"/')  # As Prometheus gives them.


def test_all_dashboards_lead_to_each_other_and_share_a_crosshair() -> None:
    shown = _shown(NOW)
    (link,) = shown["links"]
    assert (link["type"], link["tags"], link["keepTime"], link["includeVars"]) == (
        "dashboards",
        shown["tags"],
        True,
        True,
    )
    assert shown["graphTooltip"] == 1


def test_a_moment_is_marked_at_the_time_that_is_its_value_or_where_its_series_is() -> None:
    marks = (
        Annotation(name="Began", expression="a", text="{{run}}", colour="information", is_time=True),
        Annotation(name="Alert", expression="b", text="{{alertname}}", colour="bad"),
    )
    began, alert = _shown(NOW, annotations=marks)["annotations"]["list"]
    assert (began["useValueForTime"], began["textFormat"], began["iconColor"]) == (True, "{{run}}", "blue")
    assert "useValueForTime" not in alert


def test_a_value_leads_to_the_page_of_what_its_labels_tell() -> None:
    panel = _panel(TimeSeries(title="Step", queries=(_query(),), worst="highest", links=(TO_RUN,)))
    (link,) = panel["fieldConfig"]["defaults"]["links"]
    kept = "${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"
    assert link["url"] == f"/d/observatory-one-run?{kept}&var-run=${{__field.labels.run}}"
