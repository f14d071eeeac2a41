"""Turns a dashboard into Grafana's JSON: its frame, choices, annotations, links and rows, and where each panel lies.

Only `dashboards.grafana` knows Grafana's SDK (extra `dashboards`), and it imports it late.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from dashboards.grafana.looks import (
    COLOURS,
    DATA_SOURCE_NAME,
    DATA_SOURCE_UID,
    DATA_SOURCE_VARIABLE,
    TAG,
    UID_PREFIX,
    source,
)
from dashboards.model import COLUMNS, Annotation, Dashboard, Panel, Variable

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders.dashboard import AnnotationQuery, QueryVariable
    from grafana_foundation_sdk.builders.dashboard import Dashboard as Built
    from grafana_foundation_sdk.models.dashboard import GridPos


class SdkMissing(RuntimeError):
    """Grafana's SDK is not installed."""


def to_json(dashboard: Dashboard) -> str:
    """Return the dashboard as Grafana's JSON, its keys sorted, so that equal dashboards are equal texts.

    Raises:
        SdkMissing: the extra `dashboards` is not installed.
    """
    try:
        with warnings.catch_warnings():
            # On import the SDK warns of the classic schema. The new one needs Grafana 12; every Grafana reads the old.
            warnings.filterwarnings("ignore", "Prefer using dashboardv2", DeprecationWarning)
            from grafana_foundation_sdk.builders import dashboard as builders
            from grafana_foundation_sdk.builders import prometheus, timeseries  # noqa: F401
        from grafana_foundation_sdk.cog.encoder import JSONEncoder
        from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DashboardLinkType, VariableOption
    except ImportError as error:
        raise SdkMissing(
            f"dashboards are rendered with Grafana's SDK, and {error.name} is not installed;"
            " `pip install 'parallel-observatory[dashboards]'` brings it"
        ) from None

    built = (
        builders.Dashboard(dashboard.title)
        .uid(f"{UID_PREFIX}{dashboard.name}")
        .description(dashboard.summary)
        .tags([TAG])
        .timezone("browser")
        .time(f"now-{dashboard.hours}h", "now")
        .refresh("30s" if dashboard.hours <= _LIVE_HOURS else "5m")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .variables(
            [
                # Without a choice, a Grafana that has several Prometheus takes its default one.
                builders.DatasourceVariable(DATA_SOURCE_VARIABLE)
                .label("Data source")
                .type("prometheus")
                .current(VariableOption(selected=True, text=DATA_SOURCE_NAME, value=DATA_SOURCE_UID)),
                *(_variable(variable) for variable in dashboard.variables),
            ]
        )
        .annotations([_annotation(annotation) for annotation in dashboard.annotations])
        .links(
            [
                builders.DashboardLink("All of the observatory")
                .type(DashboardLinkType.DASHBOARDS)
                .tags([TAG])
                .as_dropdown(True)
                .include_vars(True)
                .keep_time(True)
            ]
        )
    )
    return json.dumps(_with_panels(built, dashboard).build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


_LIVE_HOURS = 24
"""Dashboards that look back longer are of results, which change once a night."""


# Choices, annotations.


def _variable(variable: Variable) -> QueryVariable:
    """Return a choice of one, or of several with all chosen at first.

    "All" matches series that no list has seen yet, and those that do not have the label.
    """
    from grafana_foundation_sdk.builders.dashboard import QueryVariable
    from grafana_foundation_sdk.models.dashboard import VariableOption, VariableRefresh, VariableSort

    built = (
        QueryVariable(variable.name)
        .label(variable.label)
        .datasource(source())
        .query(variable.query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.NATURAL_DESC if variable.begins_with_last else VariableSort.NATURAL_ASC)
    )
    if variable.ranked_label is not None:
        built = built.sort(VariableSort.DISABLED).regex(f'/{variable.ranked_label}="([^"]*)"/')
    if variable.is_single:
        return built.multi(False).include_all(False)
    return (
        built.multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def _annotation(annotation: Annotation) -> AnnotationQuery:
    from grafana_foundation_sdk.builders.dashboard import AnnotationQuery

    built = (
        AnnotationQuery()
        .name(annotation.name)
        .datasource(source())
        .enable(True)
        .icon_color(COLOURS[annotation.colour])
        .expr(annotation.expression)
        .title_format(annotation.name)
        .text_format(annotation.text)
        .step("60s")
    )
    return built.use_value_for_time(True) if annotation.is_time else built


# Panels and rows, in lines from left to right.


def _with_panels(built: Built, dashboard: Dashboard) -> Built:
    """Add the panels, whose ids count from 1 in the order on the page: the SDK sets none, and Grafana needs them."""
    from grafana_foundation_sdk.builders.dashboard import Row as BuiltRow

    ids = count(1)
    panels, top = _drawn(dashboard.panels, 0, ids)
    for panel in panels:
        built = built.with_panel(panel)
    for row in dashboard.rows:
        heading = BuiltRow(row.title).id(next(ids)).collapsed(row.is_collapsed).grid_pos(_place(0, top, COLUMNS, 1))
        panels, top = _drawn(row.panels, top + 1, ids)
        # Grafana keeps the panels of a collapsed row within it, and those of an open one beside it.
        for panel in panels if row.is_collapsed else []:
            heading = heading.with_panel(panel)
        built = built.with_row(heading)
        for panel in [] if row.is_collapsed else panels:
            built = built.with_panel(panel)
    return built


def _drawn(panels: Sequence[Panel], top: int, ids: Iterator[int]) -> tuple[list[Any], int]:
    """Return the panels, laid out from this line on, and the first line below all of them.

    A panel that does not fit beside the ones before it begins a new line, below the highest of them.
    """
    from dashboards.grafana.panels import draw

    drawn, left, bottom = [], 0, top
    for panel in panels:
        if left + panel.width > COLUMNS:
            left, top = 0, bottom
        drawn.append(draw(panel, next(ids), _place(left, top, panel.width, panel.height)))
        left += panel.width
        bottom = max(bottom, top + panel.height)
    return drawn, bottom


def _place(left: int, top: int, width: int, height: int) -> GridPos:
    from grafana_foundation_sdk.models.dashboard import GridPos

    return GridPos(x=left, y=top, w=width, h=height)
