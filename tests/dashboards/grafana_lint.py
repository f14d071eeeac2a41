"""What Grafana's JSON Schema lets pass and Grafana does not: wrong types, units, variables and ids."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

PANEL_TYPES = {"timeseries", "stat", "table", "bargauge", "gauge", "heatmap", "histogram", "text"}
UNITS = {"s", "bytes", "Bps", "percentunit", "short", "bool_yes_no", "watt", "joule", "celsius", "hertz"}
CUSTOM_UNIT = re.compile(r"(count|suffix|prefix|si):.+")
COLUMNS = 24
_VARIABLE = re.compile(r"\$\{?(\w+)")


def faults(dashboard: dict[str, Any]) -> list[str]:
    """What is wrong with a dashboard, a line each."""
    panels = dashboard["panels"]
    found = [f"panel type {panel['type']}" for panel in panels if panel["type"] not in PANEL_TYPES]
    found += [f"unit {unit}" for unit in map(_unit, panels) if unit not in UNITS and not CUSTOM_UNIT.fullmatch(unit)]
    found += _repeated("panel id", [panel.get("id") for panel in panels])
    found += [f"panel without id: {panel['title']}" for panel in panels if not panel.get("id")]
    for panel in panels:
        found += _repeated(f"refId in {panel['title']}", [target["refId"] for target in panel["targets"]])
    found += _repeated("title", [panel["title"] for panel in panels])
    found += [f"overlap at {cell}" for cell, count in _cells(panels).items() if count > 1 or cell[0] >= COLUMNS]
    variables = [variable["name"] for variable in dashboard["templating"]["list"]]
    found += _repeated("variable", variables)
    used = {name for text in texts(dashboard) for name in _VARIABLE.findall(text) if not name.startswith("__")}
    return found + [f"variable {name} is not defined" for name in sorted(used - set(variables))]


def texts(value: Any) -> list[str]:
    """Every text within a JSON value."""
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) else []


def expressions(dashboard: dict[str, Any]) -> list[str]:
    """Every expression of a dashboard's panels."""
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def _unit(panel: dict[str, Any]) -> str:
    unit: str = panel["fieldConfig"]["defaults"].get("unit", "no unit")
    return unit


def _repeated(what: str, values: list[Any]) -> list[str]:
    return [f"{what} {value} occurs {count} times" for value, count in Counter(values).items() if count > 1]


def _cells(panels: list[dict[str, Any]]) -> Counter[tuple[int, int]]:
    places = [panel["gridPos"] for panel in panels]
    return Counter(
        (place["x"] + column, place["y"] + row)
        for place in places
        for column in range(place["w"])
        for row in range(place["h"])
    )
