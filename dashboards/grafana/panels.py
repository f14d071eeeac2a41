"""Draws each kind of panel with Grafana's SDK."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dashboards import promql
from dashboards.grafana.looks import (
    COLOURS,
    COUNTED,
    DECIMALS,
    GRAFANA_UNITS,
    NO_VALUE,
    data_link,
    mappings,
    source,
    thresholds,
    url_of_cells,
)
from dashboards.model import Column, Drawn, Heatmap, Panel, Query, Stat, States, Table, TimeSeries, definitions

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders.prometheus import Dataquery
    from grafana_foundation_sdk.models.dashboard import GridPos

_BAND_OPACITY = 20
_GREY = "rgba(150, 150, 150, 0.5)"
_STACK_OPACITY = 60
_LEAST_TOPS, _LEAST_TOP = dict.fromkeys((*COUNTED, "tasks"), 1), 1e-6
"""Where an axis ends whose values are all smaller, of what is counted and of other units."""


def draw(panel: Panel, number: int, place: GridPos) -> Any:
    """Return the SDK's builder of the panel, with its number and place. Any: its panels have no type in common."""
    built = _build(panel)
    # Grafana 12 draws nothing at all where a table has no row, and a number has no room for a sentence.
    about = [text for text in (panel.note, definitions(panel), f"When empty: {panel.absent}") if text]
    return (
        built.id(number)
        .title(panel.title)
        .description("\n\n".join(about))
        .datasource(source())
        .grid_pos(place)
        .no_value(NO_VALUE if isinstance(panel, Stat) else panel.absent)
    )


def _build(panel: Panel) -> Any:
    match panel:
        case TimeSeries():
            return _time_series(panel)
        case Stat():
            return _stat(panel)
        case States():
            return _states(panel)
        case Heatmap():
            return _heatmap(panel)
        case Table():
            return _table(panel)


def _targets(built: Any, panel: Panel, *, now: bool = False, form: str = "time_series") -> Any:
    """Add the queries, lettered from A. now: they ask for the present only."""
    for place, query in enumerate(panel.queries):
        built = built.with_target(_target(query, chr(ord("A") + place), now=now, form=form))
    return built


def _target(query: Query, letter: str, *, now: bool, form: str) -> Dataquery:
    from grafana_foundation_sdk.builders.prometheus import Dataquery
    from grafana_foundation_sdk.models.prometheus import PromQueryFormat

    built = (
        Dataquery()
        .expr(query.expression)
        .legend_format(query.legend)
        .ref_id(letter)
        .datasource(source())
        .format(PromQueryFormat(form))
    )
    if query.has_exemplars:
        built = built.exemplar(True)
    return built.instant() if now else built.range()


def _styled(built: Any, panel: Drawn) -> Any:
    """Add what panels with one unit have in common."""
    if panel.steps is not None:
        built = built.thresholds(thresholds(panel.steps))
    if panel.links:
        built = built.data_links([data_link(link, in_table=False) for link in panel.links])
    return built.unit(GRAFANA_UNITS[panel.unit])


# Lines over time.


def _time_series(panel: TimeSeries) -> Any:
    from grafana_foundation_sdk.builders.common import (
        GraphThresholdsStyleConfig,
        StackingConfig,
        VizLegendOptions,
        VizTooltipOptions,
    )
    from grafana_foundation_sdk.builders.dashboard import FieldColor
    from grafana_foundation_sdk.builders.timeseries import Panel as BuiltTimeSeries
    from grafana_foundation_sdk.models.common import (
        GraphThresholdsStyleMode,
        LegendDisplayMode,
        LegendPlacement,
        SortOrder,
        StackingMode,
        TooltipDisplayMode,
    )
    from grafana_foundation_sdk.models.dashboard import FieldColorModeId

    is_falling = panel.worst == "highest"
    legend = (
        VizLegendOptions()
        .show_legend(True)
        .display_mode(LegendDisplayMode.TABLE)
        .placement(LegendPlacement.RIGHT if panel.legend_place == "right" else LegendPlacement.BOTTOM)
        .calcs(["last"])  # And not the last that is there: what has ended has no value now.
        .sort_by("Last")
        .sort_desc(is_falling)
    )
    order = SortOrder.DESCENDING if is_falling else SortOrder.ASCENDING
    built = _styled(
        BuiltTimeSeries()
        # Each series has the next colour, so that neighbours differ; by names two of them may have the same.
        .color_scheme(FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC))
        .override_by_field_type("number", [_of_ended()])
        .fill_opacity(_STACK_OPACITY if panel.stacked else 0)
        .legend(legend)
        .tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(order)),
        panel,
    )
    if panel.steps is not None:
        built = built.thresholds(thresholds(panel.steps, good="transparent"))
        built = built.thresholds_style(GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.AREA))
    if panel.stacked:
        built = built.stacking(StackingConfig().mode(StackingMode.NORMAL).group("A"))
    # An interval of some percent is seen only where the axis does not begin at zero.
    if not (panel.goes_below_zero or panel.banded):
        built = built.min(0)
    # Without it the axis of values that are all zero ends at 100 of whatever the unit is: at 10000 %.
    built = built.axis_soft_max(_LEAST_TOPS.get(panel.unit, _LEAST_TOP))
    if panel.unit in COUNTED:
        built = built.decimals(0)
    built = _with_references(_targets(built, panel), panel)
    return _with_band(built, panel) if panel.banded else _with_dashed_ends(built, panel)


def _with_references(built: Any, panel: TimeSeries) -> Any:
    """Draw dashed lines, which are on no stack, for what is a reference to the others."""
    from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

    for place, query in enumerate(panel.queries):
        if query.is_reference:
            built = built.override_by_query(
                chr(ord("A") + place),
                [
                    DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [10, 6]}),
                    DynamicConfigValue(id_val="custom.lineWidth", value=2),
                    DynamicConfigValue(id_val="custom.fillOpacity", value=0),
                    DynamicConfigValue(id_val="custom.stacking", value={"mode": "none", "group": "A"}),
                ],
            )
    return built


def _with_dashed_ends(built: Any, panel: TimeSeries) -> Any:
    """Draw the ends of intervals as thin grey dashed lines around their median, without an entry in the legend.

    A filled band would need the other end's name, which Grafana takes only as a fixed text: right for one series, wrong
    for several.
    """
    from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

    for place, query in enumerate(panel.queries):
        if query.is_end:
            built = built.override_by_query(
                chr(ord("A") + place),
                [
                    DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [4, 4]}),
                    DynamicConfigValue(id_val="custom.lineWidth", value=1),
                    DynamicConfigValue(id_val="custom.hideFrom", value=_hidden()),
                    DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": _GREY}),
                ],
            )
    return built


def _with_band(built: Any, panel: TimeSeries) -> Any:
    """Fill from the high end to the low one, which Grafana finds by its name."""
    from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

    low = next(query.legend for query in panel.queries if query.statistic == "low")
    for place, query in enumerate(panel.queries):
        if not query.is_end:
            continue
        looks = [
            DynamicConfigValue(id_val="custom.lineWidth", value=0),
            DynamicConfigValue(id_val="custom.hideFrom", value=_hidden()),
            DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": COLOURS["information"]}),
        ]
        if query.statistic == "high":
            looks += [
                DynamicConfigValue(id_val="custom.fillBelowTo", value=low),
                DynamicConfigValue(id_val="custom.fillOpacity", value=_BAND_OPACITY),
            ]
        built = built.override_by_query(chr(ord("A") + place), looks)
    return built


def _of_ended() -> Any:
    """Return what the legend shows for a series without a value now; the panel's own text is for no series at all."""
    from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

    return DynamicConfigValue(id_val="noValue", value=NO_VALUE)


def _hidden() -> dict[str, bool]:
    return {"legend": True, "tooltip": False, "viz": False}


# Numbers and states now.


def _stat(panel: Stat) -> Any:
    from grafana_foundation_sdk.builders.common import ReduceDataOptions
    from grafana_foundation_sdk.builders.dashboard import FieldColor
    from grafana_foundation_sdk.builders.stat import Panel as BuiltStat
    from grafana_foundation_sdk.models.common import BigValueColorMode, BigValueGraphMode, BigValueTextMode
    from grafana_foundation_sdk.models.dashboard import FieldColorModeId

    is_judged = panel.steps is not None
    built = _styled(
        BuiltStat()
        .reduce_options(ReduceDataOptions().calcs(["last"]).values(False))
        .graph_mode(BigValueGraphMode.NONE)
        .color_mode(BigValueColorMode.BACKGROUND if is_judged else BigValueColorMode.VALUE)
        # Thresholds give what has no value the colour of the lowest values.
        .mappings(mappings((), {}, absent="absent"))
        .text_mode(BigValueTextMode.NAME if panel.is_text else BigValueTextMode.AUTO),
        panel,
    )
    colour = FieldColor().mode(FieldColorModeId.THRESHOLDS)
    if not is_judged:
        colour = FieldColor().mode(FieldColorModeId.FIXED).fixed_color(COLOURS["plain"])
    built = built.color_scheme(colour)
    if panel.unit in DECIMALS:
        built = built.decimals(DECIMALS[panel.unit])
    built = _targets(built, panel, now=True)
    if not panel.is_text:
        return built
    # Where no series is, Grafana shows no name, and not even what it shows for a number that is not there.
    (names,) = panel.queries
    nameless = replace(names, expression=promql.nothing_of(names.expression), legend=NO_VALUE)
    return built.with_target(_target(nameless, "B", now=True, form="time_series"))


def _states(panel: States) -> Any:
    from grafana_foundation_sdk.builders.common import VizLegendOptions
    from grafana_foundation_sdk.builders.statetimeline import Panel as BuiltStates
    from grafana_foundation_sdk.models.common import VisibilityMode

    built = (
        BuiltStates()
        .mappings(mappings(panel.words, {}))
        .merge_values(True)
        .show_value(VisibilityMode.NEVER)
        .row_height(0.9)
        .fill_opacity(80)
        .legend(VizLegendOptions().show_legend(True))
    )
    if panel.least_step_s is not None:
        built = built.interval(f"{panel.least_step_s}s")
    if panel.links:
        built = built.data_links([data_link(link, in_table=False) for link in panel.links])
    return _targets(built, panel)


def _heatmap(panel: Heatmap) -> Any:
    from grafana_foundation_sdk.builders.heatmap import HeatmapColorOptions, YAxisConfig
    from grafana_foundation_sdk.builders.heatmap import Panel as BuiltHeatmap
    from grafana_foundation_sdk.models.heatmap import HeatmapColorMode

    built = (
        BuiltHeatmap()
        .calculate(False)
        .color(HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues").steps(64).exponent(0.5))
        .unit(GRAFANA_UNITS[panel.unit])
        .y_axis(YAxisConfig().unit(GRAFANA_UNITS[panel.unit]))
        .cell_gap(1)
    )
    return _targets(built, panel, form="heatmap")


# Tables.

_LETTER_PX, _MARGIN_PX, _ARROW_PX = 9, 16, 20
"""Of Grafana's headings: a letter, what is beside the text, and the arrow of a column that is sorted by."""
_NUMBER_PX = {
    "number": 48,
    "info": 48,
    "seconds": 88,
    "bytes": 84,
    "per_second": 80,
    "bytes_per_second": 88,
    "flops_per_second": 104,
    "hertz": 84,
    "joules": 84,
}
_LEAST_TEXT_PX = 60


def _table(panel: Table) -> Any:
    from grafana_foundation_sdk.builders.common import TableSortByFieldState
    from grafana_foundation_sdk.builders.table import Panel as BuiltTable
    from grafana_foundation_sdk.models.dashboard import DataTransformerConfig

    built = _targets(BuiltTable(), panel, now=True, form="table")
    fields = _fields(panel)
    organised = {
        "indexByName": {field: place for place, field in enumerate(fields)},
        "renameByName": {field: column.name for field, column in fields.items()},
        "includeByName": dict.fromkeys(fields, True),
    }
    numbers = [
        {"targetField": field, "destinationType": "number"}
        for field, column in fields.items()
        if column.unit is not None
    ]
    built = built.transformations(
        [
            DataTransformerConfig(id_val="merge", options={}),
            # First the columns that are wanted: whatever else a label tells would be a column, too.
            DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": list(fields)}}),
            # A label is a text, by which 16 comes before 2.
            *([DataTransformerConfig(id_val="convertFieldType", options={"conversions": numbers})] if numbers else []),
            DataTransformerConfig(id_val="organize", options={**organised, "excludeByName": {}}),
        ]
    )
    if panel.sorted_by:
        built = built.sort_by(
            [TableSortByFieldState().display_name(name).desc(panel.is_falling) for name in panel.sorted_by]
        )
    for column in panel.columns:
        built = built.override_by_name(column.name, _cell(column, width_of(column, panel)))
    # What texts leave each other; Grafana's own least width of 150 pixels makes tables wider than their panels.
    return built.min_width(_LEAST_TEXT_PX)


def width_of(column: Column, table: Table) -> int | None:
    """Return a column's width in pixels: of numbers and their heading; None for texts, which share the rest."""
    unit = column.source.unit if isinstance(column.source, Query) else column.unit
    if unit is None:
        return column.width
    heading = _LETTER_PX * len(column.name) + _MARGIN_PX + (_ARROW_PX if column.name in table.sorted_by else 0)
    longest = max((_LETTER_PX * len(word.text) + _MARGIN_PX for word in column.words), default=0)
    return max(heading, longest or _NUMBER_PX.get(unit, 72), column.width or 0)


def _fields(panel: Table) -> dict[str, Column]:
    """Return the columns by Grafana's names for them; a value's has its query's letter where there are several."""
    letters = iter("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    is_one = len(panel.queries) == 1
    return {
        column.source if isinstance(column.source, str) else _value_field(next(letters), is_one=is_one): column
        for column in panel.columns
    }


def _value_field(letter: str, *, is_one: bool) -> str:
    return "Value" if is_one else f"Value #{letter}"


def _cell(column: Column, width_px: int | None) -> list[Any]:
    from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

    # The panel's own text would be shown in each cell without a value; it is for a table without rows.
    looks: list[tuple[str, Any]] = [("noValue", NO_VALUE)]
    unit = column.source.unit if isinstance(column.source, Query) else column.unit
    if unit is not None:
        looks.append(("unit", GRAFANA_UNITS[unit]))
        if unit in DECIMALS:
            looks.append(("decimals", DECIMALS[unit]))
    if width_px is not None:
        looks.append(("custom.width", width_px))
    if column.steps is not None:
        looks += [
            ("thresholds", thresholds(column.steps, plain=COLOURS["plain"]).build()),
            ("color", {"mode": "thresholds"}),
        ]
    if column.steps is not None or column.words or column.colours:
        looks.append(("mappings", mappings(column.words, column.colours, absent="plain")))
        looks.append(("custom.cellOptions", {"type": "color-text"}))
    if column.link is not None:
        looks.append(("links", [url_of_cells(column.link)]))
    return [DynamicConfigValue(id_val=name, value=value) for name, value in looks]
