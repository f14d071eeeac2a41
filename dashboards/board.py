"""Turns each board's YAML file into Grafana's JSON: fills in thresholds, checks expressions and lays out panels.

`boards/NAME.yaml` becomes the dashboard with the UID `observatory-NAME`; docs/monitoring/boards.md lists
its keys.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import count
from typing import Any

import msgspec
import yaml

from collectors.metrics.gate import PATTERNS
from dashboards.expressions import BadExpression, check, definitions
from dashboards.panels import UID_PREFIX, BadPanel, Json, defaults, draw, merged, read, targets_of
from dashboards.thresholds import Thresholds

BOARDS = (
    "what-needs-me-now",
    "one-run",
    "which-strategy-pays",
    "does-it-scale",
    "nightly",
    "ceilings",
    "who-waits-for-whom",
    "where-does-the-pipeline-wait",
    "fleet",
    "one-gpu",
    "one-host",
)
COLUMNS = 24
"""Width of a dashboard in columns."""
TAG = "parallel-observatory"
"""Tag of all our dashboards, by which each links to the others, and a push recognises ours."""
DATA_SOURCE_VARIABLE = "datasource"
DATA_SOURCE_UID, DATA_SOURCE_NAME = "parallel-observatory", "Parallel Observatory"
"""UID and name of the data source that is provisioned, or that a push creates."""


class BadBoard(ValueError):
    """A board's file is wrong; the message names the file, the panel, and what is wrong there."""


def documents(thresholds: Thresholds) -> dict[str, Json]:
    """Return Grafana's JSON of each board, by the board's name.

    Raises:
        BadBoard: a board's file is wrong.
    """
    values = placeholders(thresholds)
    return {name: document(name, read_board(name), values) for name in BOARDS}


def read_board(name: str) -> Json:
    """Return the content of a board's file, with its placeholders.

    Raises:
        BadBoard: it is not YAML.
    """
    try:
        return read(name)
    except yaml.YAMLError as error:
        raise BadBoard(f"boards/{name}.yaml: {' '.join(str(error).split())}") from None


def to_json(board: Mapping[str, Any]) -> str:
    """Return a document as text with sorted keys, so that equal dashboards are equal texts."""
    return json.dumps(board, indent=2, sort_keys=True) + "\n"


# Placeholders in a board's file: ${live.exposed_ratio} is a threshold, <run> an expression from the file's head.

_THRESHOLD, _PART = re.compile(r"\$\{(\w+\.\w+)\}"), re.compile(r"<(\w+)>")
_SELECTOR = re.compile(r"\w+\s*\{[^{}]*\}")
"""An expression that a range may follow, which brackets around it would prevent."""


def placeholders(thresholds: Thresholds) -> dict[str, Any]:
    """Return the value of each placeholder: `gpus.braked_ratio`, `gpus.braked_percent`, and what panels compute."""
    tables = {table: rows for table, rows in msgspec.to_builtins(thresholds).items() if isinstance(rows, dict)}
    values = {f"{table}.{key}": value for table, rows in tables.items() for key, value in rows.items()}
    ratios = {name.removesuffix("_ratio"): value for name, value in values.items() if name.endswith("_ratio")}
    values |= {f"{name}_percent": f"{100 * value:g}%" for name, value in ratios.items()}
    live, efficiency = thresholds.live, thresholds.efficiency
    level = min(entry.ratio for entry in thresholds.accepted_efficiency)
    critical = level * (1 - efficiency.critical_drop_ratio)
    return {
        **values,
        **PATTERNS,
        "live.slower_ratio": 1 / live.speed_ratio - 1,
        "live.still_seconds": 60 * live.still_minutes,
        "suites.late_periods": 1 + thresholds.suites.late_ratio,
        "efficiency.fresh_seconds": 3600 * efficiency.fresh_hours,
        "efficiency.worse_change": -efficiency.critical_drop_ratio,
        "efficiency.accepted_ratio": level,
        "efficiency.critical_ratio": critical,
        "efficiency.accepted_loss": 1 - level,
        "efficiency.critical_loss": 1 - critical,
    }


def filled(part: Any, values: Mapping[str, Any]) -> Any:
    """Return a part of a board with its thresholds filled in; a list becomes a regular expression of its entries.

    Raises:
        BadPanel: there is no such threshold.
    """

    def value(match: re.Match[str]) -> Any:
        if match[1] not in values:
            near = get_close_matches(match[1], values, 1)
            raise BadPanel(f"there is no threshold {match[0]}{f'; did you mean ${{{near[0]}}}?' if near else ''}")
        entry = values[match[1]]
        return "|".join(map(str, entry)) if isinstance(entry, list | tuple) else entry

    if isinstance(part, dict):
        return {key: filled(entry, values) for key, entry in part.items()}
    if isinstance(part, list):
        return [filled(entry, values) for entry in part]
    if not isinstance(part, str):
        return part
    whole = _THRESHOLD.fullmatch(part)
    return value(whole) if whole else _THRESHOLD.sub(lambda match: str(value(match)), part)


def complete(expression: str, parts: Mapping[str, str]) -> str:
    """Return the expression with the names of expressions from the file's head replaced by their text.

    Raises:
        BadPanel: there is no such expression, or one contains itself.
    """

    def part(match: re.Match[str]) -> str:
        if match[1] not in parts:
            raise BadPanel(f"there is no expression <{match[1]}> at the head of the file")
        text = parts[match[1]].strip()
        return text if _SELECTOR.fullmatch(text) else f"(\n{text}\n)"

    for _ in range(len(parts) + 1):
        if not _PART.search(expression):
            return expression.strip()
        expression = _PART.sub(part, expression)
    raise BadPanel("an expression at the head of the file contains itself")


# A board.


def document(name: str, board: Mapping[str, Any], values: Mapping[str, Any]) -> Json:
    """Return Grafana's JSON of a board. board: the content of its file. values: see `placeholders`.

    Raises:
        BadBoard: a panel cannot be drawn, or an expression names a metric or a label that does not exist.
    """
    source, parts = defaults()["datasource"], board.get("expressions", {})

    def checked(entry: Mapping[str, Any]) -> Json:
        """Return a panel, variable or annotation with its thresholds and whole expressions."""
        completed: Json = copy.deepcopy(dict(entry))
        for place in (completed, *completed.get("targets", ()), *completed.get("columns", ())):
            for key in {"expr", "query"} & place.keys():
                place[key] = complete(place[key], parts)
        completed = dict(filled(completed, values))
        for place in (completed, *completed.get("targets", ()), *completed.get("columns", ())):
            for key in {"expr", "query"} & place.keys():
                check(place[key])
        return completed

    def panel(entry: Mapping[str, Any]) -> Json:
        completed = checked(entry)
        shown = [target["expr"] for target in targets_of(completed) if "end of" not in target.get("style", "")]
        return draw(completed, definitions(shown, completed.get("metrics")))

    def variable(entry: Mapping[str, Any]) -> Json:
        of_all = defaults()["variable"] | {"datasource": source}
        several = defaults()["multiVariable"] if entry.get("multi", True) else {}
        completed = checked(entry)
        # Grafana parses query_result(...) and label_values(...) only on one line.
        query = re.sub(r"(?<=\() | (?=\))", "", " ".join(completed["query"].split()))
        return {**of_all, **several, **completed, "query": query}

    def annotation(entry: Mapping[str, Any]) -> Json:
        return {**defaults()["annotation"], "datasource": source, "titleFormat": entry["name"], **checked(entry)}

    def each(kind: str, make: Callable[[Mapping[str, Any]], Json], entries: Sequence[Mapping[str, Any]]) -> list[Json]:
        """Return the documents made from the entries; an error names its entry."""
        documents = []
        for entry in entries:
            try:
                documents.append(make(entry))
            except (BadPanel, BadExpression) as error:
                which = json.dumps(entry.get("title", entry.get("name")))
                raise BadBoard(f"boards/{name}.yaml: {kind} {which}: {error}") from None
        return documents

    loose = [entry for entry in board["panels"] if entry.get("type") != "row"]
    rows = [
        {**row, "collapsed": True, "panels": each("panel", panel, row["panels"])}
        for row in board["panels"]
        if row.get("type") == "row"
    ]
    head = {key: value for key, value in board.items() if key in ("title", "description", "time", "refresh")}
    return {
        **merged(defaults()["dashboard"], head),
        "uid": f"{UID_PREFIX}{name}",
        "templating": {"list": [defaults()["datasourceVariable"], *each("variable", variable, board["variables"])]},
        "annotations": {"list": each("annotation", annotation, board["annotations"])},
        "panels": list(_laid_out(each("panel", panel, loose), rows)),
    }


# Layout: panels in lines from left to right, with ids in the order on the page.


def _laid_out(panels: Sequence[Json], rows: Sequence[Json]) -> Iterator[Json]:
    """Yield the panels and then the rows, which are collapsed, so that Grafana queries a row only when it is opened."""
    ids = count(1)
    placed, top = _lines(panels, 0, ids)
    yield from placed
    for row in rows:
        place = {"id": next(ids), "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1}}
        placed, top = _lines(row["panels"], top + 1, ids)
        yield {**row, **place, "panels": placed}


def _lines(panels: Sequence[Json], top: int, ids: Iterator[int]) -> tuple[list[Json], int]:
    """Return the panels, laid out from this line on, and the first line below all of them.

    A panel that does not fit next to the previous ones begins a new line, below the highest of them.
    """
    placed, left, bottom = [], 0, top
    for panel in panels:
        width, height = panel["gridPos"]["w"], panel["gridPos"]["h"]
        if left + width > COLUMNS:
            left, top = 0, bottom
        place = {"x": left, "y": top, "w": width, "h": height}
        placed.append({**panel, "id": next(ids), "gridPos": place})
        left += width
        bottom = max(bottom, top + height)
    return placed, bottom
