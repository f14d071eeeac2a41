"""Each type of panel in Grafana's JSON, where it lies, what it leads to, and what of a board's file is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from collectors.metrics.rank import STEP_SECONDS
from dashboards.board import (
    DATA_SOURCE_NAME,
    DATA_SOURCE_UID,
    DATA_SOURCE_VARIABLE,
    TAG,
    BadBoard,
    document,
    placeholders,
)
from dashboards.panels import defaults, parse
from dashboards.thresholds import shipped
from tests.dashboards import grafana_lint

HEAD = """
title: One?
description: All kinds.
time: {from: now-1h}
refresh: 30s
expressions:
  run: observatory_run_info{run=~"$run"}
variables:
  - {name: cluster, label: Cluster, query: "label_values(observatory_run_info, cluster)"}
  - {name: run, label: Run, multi: false, query: "label_values(observatory_run_info, run)"}
annotations: []
panels:
"""
STEP = "targets: [{expr: observatory_step_seconds, legendFormat: '{{run}}'}]"


def _board(panels: str, head: str = HEAD) -> dict[str, Any]:
    """A board with these panels, each a line of YAML."""
    listed = "".join(f"  - {line.strip()}\n" for line in panels.strip().splitlines())
    return document("one", parse(head + listed), placeholders(shipped()))


def _panel(line: str) -> dict[str, Any]:
    made = _board(line)
    assert grafana_lint.faults(made) == []
    (panel,) = made["panels"]
    assert isinstance(panel, dict)
    return panel


def _looks(panel: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        override["matcher"]["options"]: {look["id"]: look["value"] for look in override["properties"]}
        for override in panel["fieldConfig"]["overrides"]
    }


# What panels of all types have.


def test_a_panel_is_described_by_its_own_words_its_metrics_once_each_and_why_it_may_be_empty() -> None:
    twice = f"{{title: A, type: stat, unit: s, description: Of all runs., {STEP}}}"
    absent = "When empty: No data in this time range, or none that matches the selection above."
    assert _panel(twice)["description"] == f"Of all runs.\n\n`{STEP_SECONDS.name}`: {STEP_SECONDS.help}\n\n{absent}"


def test_infos_that_others_are_joined_with_are_not_defined_unless_the_panel_names_them() -> None:
    joined = "targets: [{expr: 'observatory_step_seconds and on (instance, slot) <run>'}]"
    panel = _panel(f"{{title: A, type: stat, unit: s, {joined}}}")
    assert re.findall(r"`(\w+)`: ", panel["description"]) == ["observatory_step_seconds"]
    panel = _panel(f"{{title: A, type: stat, unit: s, metrics: [observatory_run_info], {joined}}}")
    assert re.findall(r"`(\w+)`: ", panel["description"]) == ["observatory_run_info"]


def test_null_takes_a_default_away_and_other_keys_of_grafana_are_passed_on() -> None:
    panel = _panel(f"{{title: A, type: timeseries, unit: s, min: null, interval: 60s, {STEP}}}")
    assert "min" not in panel["fieldConfig"]["defaults"]
    assert panel["interval"] == "60s"


# Lines over time.


def test_the_worst_series_stands_first_by_its_value_now() -> None:
    panel = _panel(f"{{title: A, type: timeseries, unit: s, options: {{legend: {{sortDesc: false}}}}, {STEP}}}")
    legend = panel["options"]["legend"]
    assert (legend["calcs"], legend["sortBy"], legend["sortDesc"]) == (["last"], "Last", False)
    assert panel["options"]["tooltip"]["sort"] == "asc"


@pytest.mark.parametrize(("unit", "decimals", "top"), [("short", 0, 1), ("s", None, 1e-6), ("percentunit", None, 1e-6)])
def test_an_axis_begins_at_zero_and_has_whole_numbers_of_what_is_counted(
    unit: str, decimals: int | None, top: float
) -> None:
    field = _panel(f"{{title: A, type: timeseries, unit: {unit}, {STEP}}}")["fieldConfig"]["defaults"]
    assert (field["min"], field.get("decimals"), field["custom"]["axisSoftMax"]) == (0, decimals, top)


def test_an_area_is_painted_where_a_line_is_beyond_a_threshold() -> None:
    steps = "thresholds: {steps: [{color: transparent}, {color: orange, value: '${live.exposed_ratio}'}]}"
    field = _panel(f"{{title: A, type: timeseries, unit: s, {steps}, {STEP}}}")["fieldConfig"]["defaults"]
    assert field["thresholds"]["steps"] == [
        {"color": "transparent", "value": None},
        {"color": "orange", "value": shipped().live.exposed_ratio},
    ]
    assert field["custom"]["thresholdsStyle"] == {"mode": "area"}


def test_ends_of_intervals_are_dashed_or_a_band_and_a_reference_lies_on_no_stack() -> None:
    styles = ("", "low end of band", "high end of band", "end of interval", "reference")
    targets = ", ".join(
        f"{{expr: observatory_step_seconds, legendFormat: '{style}'{f', style: {style}' if style else ''}}}"
        for style in styles
    )
    looks = _looks(_panel(f"{{title: A, type: timeseries, unit: s, targets: [{targets}]}}"))
    assert looks.pop("number") == {"noValue": "-"}
    assert set(looks) == {"B", "C", "D", "E"}
    assert looks["C"]["custom.fillBelowTo"] == "low end of band"
    assert all(looks[letter]["custom.hideFrom"]["legend"] for letter in "BCD")
    assert looks["D"]["custom.lineStyle"]["fill"] == "dash"
    assert looks["E"]["custom.stacking"]["mode"] == "none"


# Numbers, states, heatmaps.


def test_a_number_is_of_now_and_has_the_colour_of_its_threshold_or_none() -> None:
    plain = _panel(f"{{title: A, type: stat, unit: s, {STEP}}}")
    assert plain["options"]["colorMode"] == "value"
    assert plain["fieldConfig"]["defaults"]["color"] == {"mode": "fixed", "fixedColor": "text"}
    assert [(target["instant"], target["range"]) for target in plain["targets"]] == [(True, False)]
    judged = _panel(f"{{title: A, type: stat, unit: s, thresholds: {{steps: [{{color: green}}]}}, {STEP}}}")
    assert judged["options"]["colorMode"] == "background"
    assert judged["fieldConfig"]["defaults"]["color"] == {"mode": "thresholds"}


def test_a_number_without_a_value_is_a_grey_dash() -> None:
    panel = _panel(f"{{title: A, type: stat, unit: s, whenEmpty: Nothing runs., {STEP}}}")
    field = panel["fieldConfig"]["defaults"]
    assert field["noValue"] == "-"
    assert {entry["options"]["result"]["color"] for entry in field["mappings"]} == {"#6e6e6e"}
    assert panel["description"].endswith("When empty: Nothing runs.")


def test_a_name_that_is_not_there_is_a_dash() -> None:
    panel = _panel(f"{{title: A, type: stat, unit: s, options: {{textMode: name}}, {STEP}}}")
    assert [target["legendFormat"] for target in panel["targets"]] == ["{{run}}", "-"]
    assert panel["targets"][1]["expr"] == "vector(NaN) unless on () (\nobservatory_step_seconds\n)"


def test_a_state_is_a_word_with_a_colour() -> None:
    words = "mappings: {0: {text: sound, color: green}, 1: {text: lost, color: red}}"
    (mapping,) = _panel(f"{{title: A, type: state-timeline, {words}, {STEP}}}")["fieldConfig"]["defaults"]["mappings"]
    assert {value: (word["text"], word["color"]) for value, word in mapping["options"].items()} == {
        "0": ("sound", "green"),
        "1": ("lost", "red"),
    }


def test_a_heatmap_is_of_the_buckets_that_prometheus_has() -> None:
    panel = _panel(f"{{title: A, type: heatmap, unit: s, {STEP}}}")
    assert panel["options"]["calculate"] is False
    assert panel["options"]["yAxis"] == {"unit": "s"}
    assert [target["format"] for target in panel["targets"]] == ["heatmap"]


# Tables.

LABELS = "{name: Run, field: run, links: [This run]}, {name: Ranks, field: ranks, unit: none}"
VALUES = (
    "{name: Step, unit: s, expr: observatory_step_seconds,"
    " thresholds: {steps: [{color: text}, {color: orange, value: 1}]}},"
    " {name: State, unit: short, expr: observatory_step_seconds, mappings: {1: {text: active, color: green}}}"
)
SORTED = "options: {sortBy: [{displayName: Ranks, desc: true}]}"
TABLE = f"{{title: A, type: table, whenEmpty: No run., columns: [{LABELS}, {VALUES}], {SORTED}}}"


def test_a_table_has_its_columns_in_order_and_no_other_label() -> None:
    panel = _panel(TABLE)
    merged, kept, converted, organised = (entry["options"] for entry in panel["transformations"])
    fields = ["run", "ranks", "Value #A", "Value #B"]
    assert merged == {}
    assert kept["include"]["names"] == fields
    assert converted["conversions"] == [{"targetField": "ranks", "destinationType": "number"}]
    assert organised["indexByName"] == {field: place for place, field in enumerate(fields)}
    assert [organised["renameByName"][field] for field in fields] == ["Run", "Ranks", "Step", "State"]
    assert {(target["instant"], target["format"]) for target in panel["targets"]} == {(True, "table")}


def test_the_value_of_a_tables_only_query_has_no_letter() -> None:
    panel = _panel("{title: A, type: table, columns: [{name: Step, unit: s, expr: observatory_step_seconds}]}")
    assert panel["transformations"][1]["options"]["include"]["names"] == ["Value"]


def test_a_cell_has_the_unit_the_width_the_colour_and_the_link_of_its_column() -> None:
    looks = _looks(_panel(TABLE))
    assert looks["Step"]["unit"] == "s"
    assert looks["Step"]["thresholds"]["steps"][1] == {"value": 1, "color": "orange"}
    assert looks["State"]["mappings"][0]["options"]["1"] == {"text": "active", "color": "green", "index": 0}
    assert looks["Ranks"]["custom.width"] == 9 * len("Ranks") + 16 + 20, "its heading and the arrow of sorting"
    (link,) = looks["Run"]["links"]
    kept = "${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"
    assert link["url"] == f'/d/observatory-one-run?{kept}&var-run=${{__data.fields["run"]}}'


def test_what_has_no_value_is_a_dash_and_the_sentence_is_for_a_table_without_rows() -> None:
    panel = _panel(TABLE)
    assert panel["fieldConfig"]["defaults"]["noValue"] == "No run."
    looks = _looks(panel)
    assert {name: look["noValue"] for name, look in looks.items()} == dict.fromkeys(looks, "-")
    for name in ("Step", "State"):
        special = [entry["options"] for entry in looks[name]["mappings"] if entry["type"] == "special"]
        assert [(entry["match"], entry["result"]["text"]) for entry in special] == [("null+nan", "-"), ("empty", "-")]


# The page.


def test_panels_stand_in_lines_that_are_as_high_as_their_highest_and_rows_are_closed() -> None:
    made = _board(f"""
        {{title: A, type: stat, unit: s, gridPos: {{w: 12, h: 4}}, {STEP}}}
        {{title: B, type: stat, unit: s, gridPos: {{w: 12, h: 6}}, {STEP}}}
        {{title: C, type: timeseries, unit: s, gridPos: {{w: 24}}, {STEP}}}
        {{title: D, type: row, panels: [{{title: E, type: stat, unit: s, {STEP}}}]}}
    """)
    places = [tuple(panel["gridPos"][key] for key in "xywh") for panel in made["panels"]]
    assert places == [(0, 0, 12, 4), (12, 0, 12, 6), (0, 6, 24, 8), (0, 14, 24, 1)]
    assert made["panels"][3]["collapsed"] is True
    assert [panel["id"] for panel in grafana_lint.all_panels(made, with_rows=True)] == [1, 2, 3, 4, 5]


def test_one_thing_is_chosen_or_all_of_them_with_those_that_lack_the_label() -> None:
    _, cluster, run = _board(f"{{title: A, type: stat, unit: s, {STEP}}}")["templating"]["list"]
    assert (cluster["multi"], cluster["includeAll"], cluster["allValue"]) == (True, True, ".*")
    assert (run["multi"], run["includeAll"], run.get("allValue")) == (False, False, None)


def test_a_query_of_a_variable_is_one_line_as_grafana_reads_it() -> None:
    query = "query_result(\n  sort_desc(\n    max by (run) (observatory_run_info)\n  )\n)"
    head = HEAD.replace('"label_values(observatory_run_info, run)"', f'"{query}"'.replace("\n", "\\n"))
    *_, run = _board(f"{{title: A, type: stat, unit: s, {STEP}}}", head)["templating"]["list"]
    assert run["query"] == "query_result(sort_desc(max by (run) (observatory_run_info)))"


def test_all_dashboards_lead_to_each_other_and_share_a_crosshair() -> None:
    made = _board(f"{{title: A, type: stat, unit: s, {STEP}}}")
    (link,) = made["links"]
    assert (link["type"], link["tags"], link["keepTime"], link["includeVars"]) == ("dashboards", [TAG], True, True)
    assert (made["graphTooltip"], made["tags"]) == (1, [TAG])


def test_a_push_points_the_variable_that_all_boards_have_at_its_data_source() -> None:
    variable = defaults()["datasourceVariable"]
    assert variable["name"] == DATA_SOURCE_VARIABLE
    assert variable["current"] == {"selected": True, "text": DATA_SOURCE_NAME, "value": DATA_SOURCE_UID}


def test_a_value_leads_to_the_page_of_what_its_labels_tell() -> None:
    panel = _panel(f"{{title: A, type: timeseries, unit: s, links: [This run], {STEP}}}")
    (link,) = panel["fieldConfig"]["defaults"]["links"]
    assert link["url"].endswith("&var-run=${__field.labels.run}")


# What is refused.


def _of(expression: str) -> str:
    return f"{{title: A, type: stat, unit: s, targets: [{{expr: '{expression}'}}]}}"


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        (
            _of("observatory_step_second"),
            "observatory_step_second is not a metric; did you mean observatory_step_seconds?",
        ),
        (_of("rate(obervatory_x[5m])"), "obervatory_x is not a metric"),
        (_of("observatory_step_seconds_bucket"), "observatory_step_seconds_bucket is not a metric; did you mean"),
        (_of('observatory_step_seconds{rnk="0"}'), "observatory_step_seconds has no label rnk; did you mean rank?"),
        (_of('observatory_step_seconds{gpu="0"}'), "observatory_step_seconds has no label gpu"),
        (_of("max by (runn) (observatory_run_info)"), "runn is not a label of any metric; did you mean run?"),
        (
            _of("observatory_step_seconds > ${live.exposd_ratio}"),
            "there is no threshold ${live.exposd_ratio}; did you mean",
        ),
        (_of("<rum>"), "there is no expression <rum> at the head of the file"),
        (f"{{title: A, type: graph, {STEP}}}", "type is 'graph'; it may be timeseries, stat, state-timeline, heatmap,"),
        (f"{{title: A, type: stat, links: [This rank], {STEP}}}", "there is no link 'This rank'; it may be This run,"),
        (
            "{title: A, type: timeseries, targets: [{expr: observatory_mfu_ratio, style: dotted}]}",
            "style is 'dotted'; it may be reference, end of interval,",
        ),
        (TABLE.replace("displayName: Ranks", "displayName: Age"), "it is sorted by 'Age'; its columns are Run, Ranks,"),
        (
            "{title: A, type: stat, metrics: [observatory_mfu], targets: [{expr: observatory_mfu_ratio}]}",
            "observatory_mfu is not a metric; did you mean observatory_mfu_ratio?",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_board_and_panel(line: str, refusal: str) -> None:
    with pytest.raises(BadBoard) as refused:
        _board(line)
    assert str(refused.value).startswith(f'boards/one.yaml: panel "A": {refusal}')
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    "expression",
    [
        'ALERTS{alertstate="firing", gpu=~"|$run"}',
        "series:observatory_run_scaling_efficiency_ratio:accepted",
        'label_join(observatory_rank_gpu_info, "work", " rank ", "run", "rank") * on (work) group_left () vector(1)',
        "histogram_quantile(0.5, sum by (le) (rate(observatory_step_duration_seconds_bucket[$__rate_interval])))",
        "-1e9 * observatory_mfu_ratio offset 5m",
        "up == 0",
        "last_over_time(<run>[$__range]) # of the run",
    ],
)
def test_what_prometheus_or_our_rules_make_and_labels_made_in_an_expression_are_known(expression: str) -> None:
    line = f"{{title: A, type: stat, unit: s, targets: [{{expr: '{expression}'}}]}}"
    assert _board(line)["panels"][0]["targets"]


def test_an_expression_at_the_head_that_contains_itself_is_refused() -> None:
    head = HEAD.replace('observatory_run_info{run=~"$run"}', "max(<run>)")
    with pytest.raises(BadBoard, match='panel "A": an expression at the head of the file contains itself'):
        _board(_of("<run>"), head)
