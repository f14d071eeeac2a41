"""Turns a panel of a board's YAML into Grafana's JSON, based on the defaults of its type.

A panel has Grafana's own keys. The keys of `FIELD_KEYS`, which Grafana has under `fieldConfig.defaults`, stand at the
panel's top level, and null removes a default. Our own keys are `whenEmpty`, `metrics`, a table's `columns`, a target's
`style`, and short forms of `links` and `mappings`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from collectors.files import read_regular

Json = dict[str, Any]

BOARDS_FOLDER = Path(__file__).with_name("boards")
UID_PREFIX = "observatory-"
"""Prefix of the UIDs of our dashboards, which makes them unique."""
FIELD_KEYS = ("unit", "decimals", "min", "max", "color", "custom", "thresholds", "mappings", "links")
OWN_KEYS = ("whenEmpty", "metrics", "columns")
NO_VALUE, GREY = "-", "#6e6e6e"
DECIMALS = {"percentunit": 1, "short": 0}
"""Decimals of numbers and cells; otherwise Grafana writes -0.0500 %, and a counter's growth as 6.01."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class BadPanel(ValueError):
    """A panel cannot be drawn; the message says why."""


@functools.cache
def read(name: str) -> Json:
    """Return the content of a file in the boards' folder, with its placeholders."""
    return parse(read_regular(BOARDS_FOLDER / f"{name}.yaml").decode())


def parse(text: str) -> Json:
    """Return the mapping in a YAML text, by the parser in C if PyYAML has it, which is ten times as fast."""
    content = yaml.load(text, Loader=yaml.CSafeLoader) if yaml.__with_libyaml__ else yaml.safe_load(text)
    assert isinstance(content, dict), "each of our files is a mapping"
    return content


def defaults() -> Json:
    """Return the defaults of all boards, and of all panels of a type."""
    return read("defaults")


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Json:
    """Return one mapping merged over another, at all depths; null removes the key."""
    result = copy.deepcopy(dict(below))
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return {key: value for key, value in result.items() if value is not None}


def of_type(panel: Mapping[str, Any]) -> Json:
    """Return the panel merged over the defaults of its type.

    Raises:
        BadPanel: its type is unknown.
    """
    types = defaults()["types"]
    if panel.get("type") not in types:
        raise BadPanel(f"type is {panel.get('type')!r}; it may be {', '.join(types)}, or row")
    return merged(merged(defaults()["panel"], types[panel["type"]]), panel)


def draw(panel: Mapping[str, Any], definitions: Sequence[str]) -> Json:
    """Return a panel as Grafana reads it, except for its id and position.

    definitions: of the metrics that it shows; appended to its own description.

    Raises:
        BadPanel: its type, a link or a style is unknown, or a table is sorted by an unknown column.
    """
    whole, kind = of_type(panel), panel.get("type")
    drawn = {key: value for key, value in whole.items() if key not in (*FIELD_KEYS, *OWN_KEYS)}
    drawn["datasource"] = defaults()["datasource"]
    # Grafana 12 draws nothing for a table without rows, and a number has no room for a sentence.
    about = [panel.get("description"), *definitions, f"When empty: {whole['whenEmpty']}"]
    drawn["description"] = "\n\n".join(text for text in about if text)
    field = {key: panel[key] for key in FIELD_KEYS if key in panel}
    config, options = drawn["fieldConfig"], drawn["options"]
    config["defaults"] = merged(merged(config["defaults"], _implied(str(kind), field)), _in_full(field))
    config["defaults"]["noValue"] = NO_VALUE if kind == "stat" else whole["whenEmpty"]
    if kind == "timeseries" and not options["legend"]["sortDesc"]:
        options["tooltip"]["sort"] = "asc"
    if kind == "stat" and "thresholds" in field:
        options["colorMode"] = "background"
    if kind == "heatmap":
        options["yAxis"] = {"unit": field["unit"]}
    if kind == "table":
        config["overrides"] += _cells(panel)
        drawn["transformations"] = _transformations(panel["columns"])
    targets = targets_of(panel)
    drawn["targets"] = [_target(target, letter, str(kind)) for letter, target in zip(LETTERS, targets, strict=False)]
    config["overrides"] += _styles(targets)
    return drawn


def _implied(kind: str, field: Mapping[str, Any]) -> Json:
    """Return the settings that follow from a field's unit and thresholds in this type of panel."""
    unit, is_judged = field.get("unit"), "thresholds" in field
    if kind == "timeseries":
        counted = {"decimals": 0, "custom": {"axisSoftMax": 1}} if unit == "short" else {}
        return merged(counted, {"custom": {"thresholdsStyle": {"mode": "area"}}} if is_judged else {})
    if kind == "stat":
        # Without these mappings, a missing value would have the colour of the lowest values.
        implied = {"mappings": _without_value(GREY, 0), "decimals": DECIMALS.get(str(unit))}
        return {**implied, **({"color": {"mode": "thresholds", "fixedColor": None}} if is_judged else {})}
    return {}


def _in_full(field: Mapping[str, Any]) -> Json:
    """Return a field with its links, mappings and thresholds as Grafana writes them."""
    full = dict(field)
    if "links" in field:
        link = defaults()["dataLink"]
        full["links"] = [{**link, "title": name, "url": _url(name, in_table=False)} for name in field["links"]]
    if "mappings" in field:
        full["mappings"] = _mappings(field["mappings"])
    if "thresholds" in field:
        full["thresholds"] = _thresholds(field["thresholds"])
    return full


def _url(name: str, *, in_table: bool) -> str:
    """Return a link's address; its values are a row's cells in a table, and the series' labels elsewhere."""
    links = defaults()["links"]
    if name not in links:
        raise BadPanel(f"there is no link {name!r}; it may be {', '.join(links)}")
    value = '${{__data.fields["{}"]}}' if in_table else "${{__field.labels.{}}}"
    chosen = "".join(f"&var-{quote(to)}={value.format(label)}" for to, label in links[name]["choose"].items())
    variables = "${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"
    return f"/d/{UID_PREFIX}{links[name]['board']}?{variables}{chosen}"


def _thresholds(thresholds: Mapping[str, Any]) -> Json:
    return {"mode": "absolute", "steps": [{"value": None, **step} for step in thresholds["steps"]]}


def _mappings(results: Mapping[Any, Mapping[str, Any]]) -> list[Json]:
    """Return value mappings as Grafana writes them. results: text and colour by value."""
    options = {
        str(value): {"text": str(value), "index": index, **result}
        for index, (value, result) in enumerate(results.items())
    }
    return [{"type": "value", "options": options}] if options else []


def _without_value(color: str, index: int) -> list[Json]:
    """Return the mappings of missing values."""
    result = {"text": NO_VALUE, "color": color, "index": index}
    return [{"type": "special", "options": {"match": match, "result": result}} for match in ("null+nan", "empty")]


# Targets.


def targets_of(panel: Mapping[str, Any]) -> list[Json]:
    """Return a panel's queries: its targets, or the columns of a table that have an expression."""
    columns = [{"expr": column["expr"]} for column in panel.get("columns", ()) if "expr" in column]
    targets = [*columns, *panel.get("targets", ())]
    if panel.get("options", {}).get("textMode") == "name":
        # Without a series, Grafana shows no name, not even its text for a missing number.
        targets.append({"expr": f"vector(NaN) unless on () (\n{targets[0]['expr']}\n)", "legendFormat": NO_VALUE})
    return targets


def _target(target: Mapping[str, Any], letter: str, kind: str) -> Json:
    """Return a target with its letter; numbers and tables query the present, other panels the time range."""
    is_now, form = kind in ("stat", "table"), kind if kind in ("table", "heatmap") else "time_series"
    own = {"datasource": defaults()["datasource"], "format": form, "instant": is_now, "range": not is_now}
    return {**own, "refId": letter, "legendFormat": "", **{key: target[key] for key in target if key != "style"}}


def _styles(targets: Sequence[Json]) -> list[Json]:
    """Return the overrides of the lines that have a style."""
    styles, overrides = defaults()["styles"], []
    low = next((target["legendFormat"] for target in targets if target.get("style") == "low end of band"), "")
    for letter, target in zip(LETTERS, targets, strict=False):
        if "style" in target:
            if target["style"] not in styles:
                raise BadPanel(f"style is {target['style']!r}; it may be {', '.join(styles)}")
            looks = styles[target["style"]]
            filled = {"custom.fillBelowTo": low} if "custom.fillBelowTo" in looks else {}
            overrides.append(_override("byFrameRefID", letter, looks | filled))
    return overrides


def _override(matcher: str, of: str, looks: Mapping[str, Any]) -> Json:
    properties = [{"id": name, "value": value} for name, value in looks.items()]
    return {"matcher": {"id": matcher, "options": of}, "properties": properties}


# Tables: a row for each set of labels; a column is a label (`field`) or the value of a query (`expr`).

LETTER_PX, MARGIN_PX, ARROW_PX = 9, 16, 20
"""Widths in Grafana's headings: a letter, the margins of the text, and the arrow of a sorted column."""
NUMBER_PX = {"none": 48, "bool_yes_no": 48, "count:/s": 80, "bytes": 84, "hertz": 84, "joule": 84, "s": 88, "Bps": 88}
NUMBER_PX |= {"flops": 104}
OTHER_NUMBER_PX = 72


def _transformations(columns: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Return the transformations that make a table of the columns' queries: joined by label, ordered and named."""
    letters = iter(LETTERS)
    is_alone = sum("expr" in column for column in columns) == 1
    fields = [
        column["field"] if "field" in column else "Value" if is_alone else f"Value #{next(letters)}"
        for column in columns
    ]
    names = {field: column["name"] for field, column in zip(fields, columns, strict=True)}
    numbers = [
        {"targetField": column["field"], "destinationType": "number"}
        for column in columns
        if "field" in column and "unit" in column
    ]
    organised = {
        "indexByName": {field: index for index, field in enumerate(fields)},
        "renameByName": names,
        "includeByName": dict.fromkeys(fields, True),
        "excludeByName": {},
    }
    return [
        {"id": "merge", "options": {}},
        # Only the wanted columns: every other label would also be a column.
        {"id": "filterFieldsByName", "options": {"include": {"names": fields}}},
        # As texts, labels would sort 16 before 2.
        *([{"id": "convertFieldType", "options": {"conversions": numbers}}] if numbers else []),
        {"id": "organize", "options": organised},
    ]


def _cells(panel: Mapping[str, Any]) -> list[Json]:
    """Return the overrides by which the cells of each column have their unit, width, colours and links."""
    names = [column["name"] for column in panel["columns"]]
    sorted_by = [entry["displayName"] for entry in panel.get("options", {}).get("sortBy", ())]
    for name in sorted_by:
        if name not in names:
            raise BadPanel(f"it is sorted by {name!r}; its columns are {', '.join(names)}")
    return [_override("byName", column["name"], _looks(column, sorted_by)) for column in panel["columns"]]


def _looks(column: Mapping[str, Any], sorted_by: Sequence[str]) -> Json:
    unit, mappings, is_judged = column.get("unit"), column.get("mappings", {}), "thresholds" in column
    looks: Json = {"noValue": NO_VALUE}  # The panel's text is for a table without rows.
    looks |= {"unit": unit, "decimals": column.get("decimals", DECIMALS.get(str(unit)))}
    looks["custom.width"] = _width(column, sorted_by)
    if is_judged:
        looks |= {"thresholds": _thresholds(column["thresholds"]), "color": {"mode": "thresholds"}}
    if is_judged or mappings:
        looks["mappings"] = [*_mappings(mappings), *_without_value("text", len(mappings))]
        looks["custom.cellOptions"] = {"type": "color-text"}
    if "links" in column:
        looks["links"] = [{"title": name, "url": _url(name, in_table=True)} for name in column["links"]]
    return {name: value for name, value in looks.items() if value is not None}


def _width(column: Mapping[str, Any], sorted_by: Sequence[str]) -> int | None:
    """Return a column's width in pixels, for numbers and their heading; None for texts, which share the rest."""
    if "unit" not in column:
        return column.get("width")
    heading = LETTER_PX * len(column["name"]) + MARGIN_PX + (ARROW_PX if column["name"] in sorted_by else 0)
    words = [LETTER_PX * len(str(result.get("text", ""))) + MARGIN_PX for result in column.get("mappings", {}).values()]
    numbers = max(words) if words else NUMBER_PX.get(column["unit"], OTHER_NUMBER_PX)
    return max(heading, numbers, int(column.get("width", 0)))
