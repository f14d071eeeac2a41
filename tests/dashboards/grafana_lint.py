"""What Grafana's JSON Schema lets pass and Grafana does not: wrong types, units, variables and ids."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

PANEL_TYPES = {"timeseries", "stat", "table", "state-timeline", "heatmap"}
UNITS = {
    "s",
    "bytes",
    "Bps",
    "flops",
    "percentunit",
    "short",
    "none",
    "bool_yes_no",
    "watt",
    "joule",
    "celsius",
    "hertz",
}
UNITLESS = {"table", "state-timeline"}
"""Panels whose values have units of their own, or none."""
CUSTOM_UNIT = re.compile(r"(count|suffix|prefix|si):.+")
COLUMNS = 24
_VARIABLE = re.compile(r"\$\{?(\w+)")


def faults(dashboard: dict[str, Any]) -> list[str]:
    """What is wrong with a dashboard, a line each."""
    everything = all_panels(dashboard, with_rows=True)
    panels = all_panels(dashboard)
    found = [f"panel type {panel['type']}" for panel in panels if panel["type"] not in PANEL_TYPES]
    found += [f"unit {unit}" for unit in _units(panels) if unit not in UNITS and not CUSTOM_UNIT.fullmatch(unit)]
    found += _repeated("panel id", [panel.get("id") for panel in everything])
    found += [f"panel without id: {panel['title']}" for panel in everything if not panel.get("id")]
    found += [f"nothing is told where {panel['title']} is empty" for panel in panels if not _no_value(panel)]
    for panel in panels:
        found += _repeated(f"refId in {panel['title']}", [target["refId"] for target in panel["targets"]])
    found += _repeated("title", [panel["title"] for panel in panels])
    found += [f"overlap at {cell}" for cell, count in _cells(everything).items() if count > 1 or cell[0] >= COLUMNS]
    variables = [variable["name"] for variable in dashboard["templating"]["list"]]
    found += _repeated("variable", variables)
    used = {name for text in texts(dashboard) for name in _VARIABLE.findall(text) if not name.startswith("__")}
    used -= {"1"}  # A group of label_replace, which Grafana leaves as it is.
    return found + [f"variable {name} is not defined" for name in sorted(used - set(variables))]


def all_panels(dashboard: dict[str, Any], *, with_rows: bool = False) -> list[dict[str, Any]]:
    """The panels of a dashboard, those within collapsed rows included, in the order on the page."""
    found = []
    for panel in dashboard["panels"]:
        if panel["type"] != "row" or with_rows:
            found.append(panel)
        found += panel.get("panels", [])
    return found


def texts(value: Any) -> list[str]:
    """Every text within a JSON value."""
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) else []


def expressions(dashboard: dict[str, Any]) -> list[str]:
    """Every expression of a dashboard's panels."""
    return [target["expr"] for panel in all_panels(dashboard) for target in panel["targets"]]


def _units(panels: list[dict[str, Any]]) -> list[str]:
    """The units of panels, and of the columns of tables."""
    found = [
        panel["fieldConfig"]["defaults"].get("unit", "no unit") for panel in panels if panel["type"] not in UNITLESS
    ]
    looks = [
        look
        for panel in panels
        for override in panel["fieldConfig"].get("overrides", [])
        for look in override["properties"]
    ]
    return found + [look["value"] for look in looks if look["id"] == "unit"]


def _no_value(panel: dict[str, Any]) -> str:
    told: str = panel["fieldConfig"]["defaults"].get("noValue", "")
    return told


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
