"""What is rendered is valid, is what is committed, and speaks of the catalogue's metrics only."""

import copy
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from collectors.metrics.agent import RUN_INFO
from collectors.metrics.metric import Metric
from collectors.metrics.registry import METRICS, SHOWN
from collectors.metrics.suites import SUITE_LAST_START
from dashboards import render
from dashboards.board import BOARDS, to_json
from dashboards.expressions import metrics_of
from dashboards.rules import ACCEPTED_OF_RANKS, load
from dashboards.thresholds import shipped
from tests.dashboards import grafana_lint
from tests.dashboards.boards import Board, all_boards, board
from tests.dashboards.not_shown import NOT_SHOWN
from tests.dashboards.promtool import promtool
from tests.support.grafana_expressions import with_every_choice

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT.parent / "shared" / "data" / "grafana" / "dashboard.jsonschema.json"
NAMES = {metric.name for metric in SHOWN}


@pytest.fixture(params=all_boards(), ids=lambda dashboard: dashboard.name)
def rendered(request: pytest.FixtureRequest) -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads(to_json(request.param.document))
    return dashboard


def _rules() -> str:
    return render.rules_text(load(shipped()), shipped().links)


def _spelt(text: str) -> set[str]:
    """The metrics in a text: a histogram's by its buckets, and none of what rules record of them."""
    return {name.removesuffix("_bucket") for name in re.findall(r"(?<!series:)\bobservatory_\w+", text)}


def test_the_committed_files_are_what_the_catalogue_gives() -> None:
    assert render.stale(ROOT, render.render()) == []


def test_a_changed_a_missing_and_an_orphaned_file_are_stale_until_written(tmp_path: Path) -> None:
    render.write(tmp_path)
    rules = (tmp_path / render.RULES).read_text()
    (tmp_path / render.RULES).write_text(rules.replace("for: 5m", "for: 6m"))
    (tmp_path / render.METRICS_PAGE).unlink()
    orphan = render.RENDERED / "gone.json"
    (tmp_path / orphan).write_text('{"tags": ["parallel-observatory"]}')
    assert render.stale(tmp_path, render.render()) == [render.RULES, render.METRICS_PAGE, orphan]
    assert render.write(tmp_path) == [render.RULES, render.METRICS_PAGE, orphan]
    assert render.stale(tmp_path, render.render()) == []
    assert not (tmp_path / orphan).exists()


def test_a_dashboard_fits_grafanas_schema(rendered: dict[str, Any]) -> None:
    if not SCHEMA.is_file():
        pytest.skip(f"Grafana's JSON Schema of a dashboard is not at {SCHEMA}")
    schema = json.loads(SCHEMA.read_text())
    definitions = schema.get("definitions") or schema["$defs"]
    # Narrower there than Grafana's own files are.
    definitions["MatcherConfig"]["properties"]["options"] = {}
    definitions["DynamicConfigValue"]["properties"]["value"] = {}
    # `jsonschema.validate` would check the schema itself for each dashboard.
    jsonschema.validators.validator_for(schema)(schema).validate(rendered)


def test_a_dashboard_has_what_grafana_needs_beyond_its_schema(rendered: dict[str, Any]) -> None:
    assert grafana_lint.faults(rendered) == []


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("panels", 0, "type"), "graphs", "panel type graphs"),
        (("panels", 0, "fieldConfig", "defaults", "unit"), "sec", "unit sec"),
        (("panels", 1, "id"), 1, "panel id 1 occurs 2 times"),
        (("panels", 0, "id"), None, "panel without id: {first}"),
        (
            ("panels", 6, "targets", 1, "refId"),
            "A",
            "refId in Wait and transfer per call, by collective A occurs 2 times",
        ),
        (("panels", 0, "targets", 0, "expr"), "up{job=~'$job'}", "variable job is not defined"),
        (("panels", 1, "gridPos", "x"), 7, "overlap at (7, 0)"),
        (("panels", 0, "fieldConfig", "defaults", "noValue"), "", "nothing is told where {first} is empty"),
    ],
)
def test_the_lint_sees(path: tuple[str | int, ...], value: object, fault: str) -> None:
    shown = json.loads(to_json(board("who-waits-for-whom").document))
    broken: Any = copy.deepcopy(shown)
    *way, last = path
    place = broken
    for key in way:
        place = place[key]
    place[last] = value
    assert fault.format(first=shown["panels"][0]["title"]) in grafana_lint.faults(broken)


def test_one_target_of_the_quantiles_of_steps_asks_for_exemplars_too() -> None:
    shown = board("one-run").document
    asking = [
        (panel["title"], target["legendFormat"], target["range"])
        for panel in grafana_lint.all_panels(shown)
        for target in panel["targets"]
        if target.get("exemplar")
    ]
    assert asking == [("Step of all ranks: p50, p90, p99", "p99", True)]


def test_a_dashboard_asks_for_metrics_that_are_shown_only(rendered: dict[str, Any]) -> None:
    asked = {name for text in grafana_lint.texts(rendered) for name in _spelt(text)}
    assert asked
    assert asked <= NAMES


def test_rules_ask_for_metrics_that_are_shown_only() -> None:
    # What a rule records keeps its name, and with it the nights that Prometheus has kept.
    spelt = _spelt(_rules())
    assert spelt
    assert spelt <= NAMES


def test_dashboards_and_rules_ask_for_metrics_of_the_catalogue() -> None:
    texts = [_rules()]
    texts += [text for one in all_boards() for text in grafana_lint.texts(one.document)]
    asked = set().union(*map(_spelt, texts))
    assert asked
    assert asked <= NAMES


def test_a_series_that_a_rule_asks_for_by_a_recorded_name_is_recorded() -> None:
    rules = [rule for group in yaml.safe_load(_rules())["groups"] for rule in group["rules"]]
    recorded = {rule["record"] for rule in rules if "record" in rule}
    texts = [text for rule in rules for text in (rule["expr"], *rule.get("annotations", {}).values())]
    asked = {name for text in texts for name in re.findall(r"series:\w+:\w+", text)}
    # A level of ranks is recorded where somebody's thresholds have one.
    assert asked == recorded | {ACCEPTED_OF_RANKS}


@pytest.mark.parametrize(
    "name",
    [
        "ceilings",
        "who-waits-for-whom",
        "nightly",
        "where-does-the-pipeline-wait",
        "does-it-scale",
        "which-strategy-pays",
    ],
)
def test_a_board_of_results_asks_for_one_cluster_only(name: str) -> None:
    dashboard = board(name)
    assert (dashboard.variables[0]["name"], dashboard.variables[0]["multi"]) == ("cluster", False)
    # Joined with their run, which is chosen.
    of_ranks = {shown.name for metric in METRICS if metric.scope == "rank" for shown in metric.shown()}
    for variable in dashboard.variables[1:]:
        assert 'cluster=~"$cluster"' in variable["query"]
    for expression in (query.expression for query in dashboard.queries):
        for metric, labels in re.findall(r"(?<!:)\b(observatory_\w+)(\{[^}]*\})?", expression):
            assert metric in of_ranks or 'cluster=~"$cluster"' in labels, expression


@pytest.mark.parametrize(
    ("dashboard", "metric"), [(board("who-waits-for-whom"), RUN_INFO), (board("nightly"), SUITE_LAST_START)]
)
def test_a_cluster_can_be_chosen_before_it_has_a_result(dashboard: Board, metric: Metric) -> None:
    assert metric.name in dashboard.variables[0]["query"]


def test_all_of_a_page_follows_the_cluster_that_is_chosen(rendered: dict[str, Any]) -> None:
    variables = rendered["templating"]["list"]
    assert "cluster" in [variable["name"] for variable in variables]
    asked = [target["expr"] for panel in grafana_lint.all_panels(rendered) for target in panel["targets"]]
    asked += [mark["expr"] for mark in rendered["annotations"]["list"] if "expr" in mark]
    asked += [str(one["query"]) for one in variables if one["type"] == "query" and one["name"] != "cluster"]
    assert [expression for expression in asked if "$cluster" not in expression] == []


def test_what_is_said_to_be_told_by_collective_or_size_is() -> None:
    for dashboard in all_boards():
        told = [(panel.title, panel.queries) for panel in dashboard.all_panels]
        told += [
            (row, tuple(query for panel in panels for query in panel.queries)) for row, panels in dashboard.rows.items()
        ]
        for title, queries in told:
            spoken = {word for words in re.findall(r"\bby (\w+)(?: and (\w+))?", title.lower()) for word in words}
            names = {name for query in queries for name in metrics_of(query.expression)}
            labels = {label for metric in SHOWN if metric.name in names for label in metric.labels}
            assert (spoken & {"collective", "size"}) - labels == set(), (dashboard.name, title)


TABLES = [panel for dashboard in all_boards() for panel in dashboard.all_panels if panel.kind == "table"]


def test_a_table_by_world_size_or_size_reads_as_a_curve() -> None:
    last = {table.title: table.sorted_by[-1] for table in TABLES if re.search(r"\bby (world )?size\b", table.title)}
    assert last == {
        "Efficiency by world size, compared with the accepted and the usual level": "Ranks",
        "Collectives by size, compared with the fitted line": "Size",
    }


def test_a_label_that_counts_is_sorted_as_a_number_and_a_size_is_shown_in_its_unit() -> None:
    units = {"ranks": "none", "rank": "none", "nodes": "none", "stage": "none", "size": "bytes"}
    columns = [(table, name, label) for table in TABLES for name, label in table.columns.items() if label in units]
    assert {label for _, _, label in columns} == units.keys()
    for table, name, label in columns:
        (numbers,) = (one["options"] for one in table.document["transformations"] if one["id"] == "convertFieldType")
        assert {"targetField": label, "destinationType": "number"} in numbers["conversions"]
        assert table.looks(name)["unit"] == units[label]


_LETTERS = {
    **dict.fromkeys(("gpu", "rank", "port", "stage", "numa", "link"), 2),
    **dict.fromkeys(("collective", "kind", "suite"), 14),
    **dict.fromkeys(("instance", "folder", "question"), 18),
    **dict.fromkeys(("part", "reason", "run"), 20),
    "work": 28,
    **dict.fromkeys(("function", "field"), 36),
    "name": 80,
}
"""How many letters the values of labels have, the long ones of those that are usual; others have 8."""
_LETTERS_BESIDE = 36
"""Of the longest name that stands beside the lines of half a page 1280 pixels wide, and is not cut."""


def _letters(legend: str) -> int:
    label = re.compile(r"\{\{\s*(\w+)\s*\}\}")
    return len(label.sub("", legend)) + sum(_LETTERS.get(name, 8) for name in label.findall(legend))


def test_names_that_would_be_cut_beside_the_lines_stand_below_them() -> None:
    cut = [
        (dashboard.name, panel.title)
        for dashboard in all_boards()
        for panel in dashboard.all_panels
        if panel.kind == "timeseries" and panel.document["options"]["legend"]["placement"] == "right"
        for query in panel.queries
        if not query.is_end and _letters(query.legend) > _LETTERS_BESIDE * panel.document["gridPos"]["w"] / 12
    ]
    assert cut == []


def test_each_alert_says_what_it_is_and_has_a_runbook() -> None:
    alerts = [alert for group in load(shipped()) for alert in group.alerts]
    assert alerts
    for alert in alerts:
        assert alert.annotations.summary
        assert alert.annotations.description
        assert alert.dashboard in BOARDS
        assert (ROOT / "docs" / "runbooks" / alert.runbook).read_text().startswith(f"# {alert.name}\n")


def test_each_runbook_is_one_of_an_alert() -> None:
    runbooks = {alert.runbook for group in load(shipped()) for alert in group.alerts}
    assert {path.name for path in (ROOT / "docs" / "runbooks").iterdir()} == runbooks


def test_an_alert_leads_to_its_runbook_and_chooses_its_dashboard() -> None:
    rules = [rule for group in yaml.safe_load(_rules())["groups"] for rule in group["rules"]]
    (lost,) = (rule for rule in rules if rule.get("alert") == "GpuLost")
    assert lost["labels"] == {"severity": "critical", "component": "gpu"}
    assert lost["annotations"]["runbook"] == "observatory runbook GpuLost"
    assert lost["annotations"]["dashboard_url"] == (
        "http://localhost:3000/d/observatory-one-gpu?from=now-25h&to=now"
        "{{ with $labels.cluster }}&var-cluster={{ . | urlquery }}{{ end }}"
        "{{ with $labels.instance }}&var-node={{ . | urlquery }}{{ end }}"
        "{{ with $labels.gpu }}&var-gpu={{ . | urlquery }}{{ end }}"
    )


@pytest.mark.parametrize(
    ("variable", "label"),
    [
        (board("one-gpu").variable("node"), "instance"),
        (board("what-needs-me-now").variable("series"), "name"),
        (board("nightly").variable("series"), "name"),
    ],
    ids=["listed", "of another name", "ranked"],
)
def test_an_alert_chooses_by_the_label_whose_values_a_variable_has(variable: dict[str, Any], label: str) -> None:
    assert render.label_of(variable) == label


def test_the_page_of_metrics_has_a_row_for_each_metric_with_its_definition() -> None:
    rows = re.findall(r"^\| `(\w+)`(?:<br>`\w+`)* \| .* \| (.*) \|$", render.page(), re.MULTILINE)
    assert rows == [(metric.name, metric.help) for metric in METRICS]


def test_the_page_of_metrics_has_every_name_that_is_shown() -> None:
    assert set(re.findall(r"`(\w+)[`{]", render.page())) >= NAMES


@pytest.mark.stack
def test_prometheus_reads_each_expression_and_the_rules(tmp_path: Path) -> None:
    asked = [expression for name in BOARDS for expression in _expressions(name)]
    rules = [
        {"record": f"checked_{number}", "expr": with_every_choice(expression)}
        for number, expression in enumerate(asked)
    ]
    path = tmp_path / "expressions.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "expressions", "rules": rules}]}))
    assert f"SUCCESS: {len(asked)} rules found" in promtool("check", "rules", path).stdout
    checked = promtool("check", "rules", ROOT / render.RULES)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.stack
def test_prometheus_refuses_what_is_no_expression(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    rule = {"record": "checked", "expr": with_every_choice("rate(observatory_tokens_total{slot=~'$slot'})")}
    path.write_text(yaml.safe_dump({"groups": [{"name": "broken", "rules": [rule]}]}))
    ended: subprocess.CompletedProcess[str] = promtool("check", "rules", path)
    assert ended.returncode != 0
    assert "range vector" in ended.stderr


def _expressions(name: str) -> list[str]:
    return grafana_lint.expressions(json.loads((ROOT / render.RENDERED / f"{name}.json").read_text()))


# Every metric is on a panel, or is listed as not shown with the reason.

ASKED = {
    name
    for dashboard in all_boards()
    for expression in (
        *(query.expression for query in dashboard.queries),
        *(mark["expr"] for mark in dashboard.document["annotations"]["list"]),
    )
    for name in re.findall(r"\b[a-z][a-z0-9_]+", expression)
}


def _is_shown(metric: Metric) -> bool:
    return any(name in ASKED or f"{name}_bucket" in ASKED for name in (form.name for form in metric.shown()))


def test_a_metric_is_on_a_panel_or_is_listed_as_not_shown() -> None:
    assert [metric.name for metric in METRICS if _is_shown(metric) == (metric in NOT_SHOWN)] == []


def test_what_is_listed_has_a_reason_and_is_of_the_catalogue() -> None:
    assert set(NOT_SHOWN) <= set(METRICS)
    assert all(reason.endswith(".") for reason in NOT_SHOWN.values())


def test_the_page_of_scale_names_queries_and_panels_that_there_are() -> None:
    text = (ROOT / "docs" / "measured" / "fleet.md").read_text().partition("## What a page takes")[2]
    listed = re.findall(r"^\| ([^|]+) \| (\d+) \| [\d,]+ \| [\d,]+ \| ([^|]+) \|$", text, re.MULTILINE)
    boards = {dashboard.title: dashboard for dashboard in all_boards()}
    assert {title for title, _, _ in listed} == boards.keys()
    for title, queries, panel in listed:
        page = boards[title].document
        assert len(grafana_lint.expressions(page)) == int(queries), title
        assert panel in {one["title"] for one in grafana_lint.all_panels(page)}, title
