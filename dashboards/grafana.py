"""Turns a dashboard into Grafana's JSON.

Only this module knows Grafana's SDK (extra `dashboards`), and it imports it late.
"""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING

from dashboards.model import Dashboard, Panel, Query, Variable

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders.dashboard import QueryVariable
    from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
    from grafana_foundation_sdk.models.common import DataSourceRef

DATA_SOURCE_VARIABLE = "datasource"
GRAFANA_UNITS = {
    "seconds": "s",
    "bytes": "bytes",
    "ratio": "percentunit",
    "per_second": "count:/s",
    "nats": "short",
    "microbatches": "short",
    "pairs": "short",
    "watts": "watt",
    "joules": "joule",
    "celsius": "celsius",
    "hertz": "hertz",
    "bytes_per_second": "Bps",
    "errors": "short",
    "tasks": "short",
    "cases": "short",
    "info": "bool_yes_no",
}
"""Grafana's name for each unit of a metric that a panel may show."""

COLUMNS = 24
_WIDTH, _HEIGHT = 12, 8


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
    except ImportError as error:
        raise SdkMissing(
            f"dashboards are rendered with Grafana's SDK, and {error.name} is not installed;"
            " `pip install 'parallel-observatory[dashboards]'` brings it"
        ) from None

    built = (
        builders.Dashboard(dashboard.title)
        .uid(dashboard.name)
        .description(dashboard.summary)
        .tags(["parallel-observatory"])
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .variables(
            [
                builders.DatasourceVariable(DATA_SOURCE_VARIABLE).label("Data source").type("prometheus"),
                *(_variable(variable) for variable in dashboard.variables),
            ]
        )
    )
    for number, panel in enumerate(dashboard.panels):
        built = built.with_panel(_panel(panel, number))
    return json.dumps(built.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _source() -> DataSourceRef:
    from grafana_foundation_sdk.models.common import DataSourceRef

    return DataSourceRef(type_val="prometheus", uid=f"${{{DATA_SOURCE_VARIABLE}}}")


def _variable(variable: Variable) -> QueryVariable:
    """Return a choice of several, all chosen at first; "All" also matches series that no list has seen yet."""
    from grafana_foundation_sdk.builders.dashboard import QueryVariable
    from grafana_foundation_sdk.models.dashboard import VariableOption, VariableRefresh, VariableSort

    return (
        QueryVariable(variable.name)
        .label(variable.label)
        .datasource(_source())
        .query(variable.query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.NATURAL_ASC)
        .multi(True)
        .include_all(True)
        .current(VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def _panel(panel: Panel, number: int) -> TimeSeries:
    from grafana_foundation_sdk.builders.common import VizLegendOptions, VizTooltipOptions
    from grafana_foundation_sdk.builders.dashboard import FieldColor
    from grafana_foundation_sdk.builders.prometheus import Dataquery
    from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
    from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, SortOrder, TooltipDisplayMode
    from grafana_foundation_sdk.models.dashboard import FieldColorModeId, GridPos

    # Two panels side by side: panel 3 is at column 12 of the second row.
    column, row = number * _WIDTH % COLUMNS, number * _WIDTH // COLUMNS * _HEIGHT
    falling = panel.worst == "highest"
    legend = (
        VizLegendOptions()
        .show_legend(True)
        .display_mode(LegendDisplayMode.TABLE)
        .placement(LegendPlacement.BOTTOM)
        .calcs(["lastNotNull"])
        .sort_by("Last *")
        .sort_desc(falling)
    )
    order = SortOrder.DESCENDING if falling else SortOrder.ASCENDING
    built = (
        TimeSeries()
        .id(number + 1)  # The SDK sets none, and Grafana needs different ones.
        .title(panel.title)
        .description(panel.description)
        .datasource(_source())
        .unit(GRAFANA_UNITS[panel.unit])
        .grid_pos(GridPos(h=_HEIGHT, w=_WIDTH, x=column, y=row))
        # Coloured by name: the ends of an interval have the name, and so the colour, of its median.
        .color_scheme(FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
        .fill_opacity(0)
        .legend(legend)
        .tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(order))
    )
    if not panel.goes_below_zero:
        built = built.min(0)
    for place, query in enumerate(panel.queries):
        letter = chr(ord("A") + place)
        built = built.with_target(
            Dataquery().expr(query.expression).legend_format(query.legend).ref_id(letter).datasource(_source()).range()
        )
        if query.bound in ("low", "high"):
            built = _as_end_of_interval(built, letter, query)
    return built


def _as_end_of_interval(panel: TimeSeries, letter: str, query: Query) -> TimeSeries:
    """Draw the query as a thin dashed line without an entry in the legend.

    A filled band would need the other end's name, which Grafana takes only as a fixed text: right for one series, wrong
    for several.
    """
    from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

    return panel.override_by_query(
        letter,
        [
            DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [4, 4]}),
            DynamicConfigValue(id_val="custom.lineWidth", value=1),
            DynamicConfigValue(id_val="custom.hideFrom", value={"legend": True, "tooltip": False, "viz": False}),
        ],
    )
