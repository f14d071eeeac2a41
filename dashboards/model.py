"""Dashboards with their panels and queries, as plain data.

Knows neither PromQL nor Grafana's own types.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from collectors.metrics.metric import Metric, Statistic

Severity = Literal["critical", "warning"]
"""critical: somebody must act now. warning: somebody should look on the next working day."""


# Dashboards: what every panel has.

Worst = Literal["highest", "lowest"]
Colour = Literal["good", "warning", "bad", "information", "plain"]
"""What a value means; the renderer knows which colour that is."""
LegendPlace = Literal["right", "bottom"]
COLUMNS, HALF_WIDTH = 24, 12
"""How many columns a dashboard is wide, and a panel that has another beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One expression and the names of its series.

    metric: what it shows; unit and definition come from there. None where Prometheus itself tells it, as alerts.
    unit: differs from the metric's where the expression changes it, as a rate does.
    statistic: of a run's figure; the ends of its interval are drawn as such. None of all else.
    is_reference: a dashed line over the others, never part of their stack, as what is expected of them is.
    has_exemplars: single observations of the histograms that it asks for are points over its line.
    """

    metric: Metric | None
    expression: str
    legend: str
    unit: str
    statistic: Statistic | None = None
    is_reference: bool = False
    has_exemplars: bool = False

    @property
    def is_end(self) -> bool:
        """Whether it shows an end of an interval, whose median another query shows."""
        return self.statistic in ("low", "high")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """From this value on, up to the next step, values mean this."""

    value: float
    colour: Colour


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What values mean: the colour below all steps, and the steps in rising order."""

    below: Colour
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        values = [step.value for step in self.steps]
        if values != sorted(set(values)):
            raise ValueError(f"steps of colours must rise; they are {', '.join(f'{value:g}' for value in values)}")


def rising(warning: float, bad: float | None = None, *, colour: Colour = "good") -> Steps:
    """Return steps for what is worse the higher it is. colour: of what is below the first."""
    steps = [Step(value=warning, colour="warning")]
    return Steps(below=colour, steps=(*steps, *([] if bad is None else [Step(value=bad, colour="bad")])))


def falling(warning: float, bad: float | None = None, *, colour: Colour = "good") -> Steps:
    """Return steps for what is worse the lower it is: bad below `bad`, a warning below `warning`."""
    if bad is None:
        return Steps(below="warning", steps=(Step(value=warning, colour=colour),))
    return Steps(below="bad", steps=(Step(value=bad, colour="warning"), Step(value=warning, colour=colour)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Leads from a value to another dashboard, with the time range of this one.

    dashboard: its name. choices: of each variable there, the label of the value whose content is chosen.
    kept: variables that both dashboards have, and whose choice here is the choice there.
    """

    title: str
    dashboard: str
    choices: dict[str, str]
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What panels of all kinds have.

    width: of `COLUMNS`. height: in Grafana's rows of 30 pixels. absent: why nothing may be shown, and what to do then.
    note: what is told of it beside the definitions of its metrics.
    """

    title: str
    width: int = HALF_WIDTH
    height: int = 8
    note: str = ""
    absent: str = "Nothing in this time range, or nothing of what is chosen above."


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn(Frame):
    """A panel whose queries have one unit.

    steps: what values mean, None where they are neither good nor bad. links: from each value.
    """

    queries: tuple[Query, ...]
    steps: Steps | None = None
    links: tuple[Link, ...] = ()

    def __post_init__(self) -> None:
        units = sorted({query.unit for query in self.queries})
        if len(units) != 1:
            raise ValueError(
                f'panel "{self.title}" has the units {", ".join(units) or "of no query"}; it must have one'
            )

    @property
    def unit(self) -> str:
        """The unit of all its queries, as metrics name it."""
        return self.queries[0].unit


# Kinds of panels.

_LETTERS = {
    **dict.fromkeys(("gpu", "rank", "port", "stage", "numa", "link"), 2),
    **dict.fromkeys(("collective", "kind", "suite"), 14),
    **dict.fromkeys(("instance", "folder", "question"), 18),
    **dict.fromkeys(("part", "reason", "run"), 20),
    "work": 28,
    **dict.fromkeys(("function", "field"), 36),
    "name": 80,
}
_LETTERS_OF_OTHERS = 8
"""How many letters the values of labels have, the long ones of those that are usual."""
_LETTERS_BESIDE = 36
"""Of the longest name beside the lines of half a page that is 1280 pixels wide: longer ones are cut."""
_LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSeries(Drawn):
    """Lines over time.

    worst: which end is worst, and so stands first in the legend.
    goes_below_zero: whether the axis may; otherwise it begins at zero, but for that of a band.
    stacked: the series are parts of a whole and lie on each other.
    banded: the queries show one series, whose interval is a filled band; else its ends are dashed lines.
    legend: where its names stand: beside the lines, where there are many, or below; see `legend_place`.
    """

    worst: Worst
    goes_below_zero: bool = False
    stacked: bool = False
    banded: bool = False
    legend: LegendPlace = "bottom"

    @property
    def legend_place(self) -> LegendPlace:
        """Where names stand so that none is cut: long ones below the lines, the worst first."""
        longest = max(_letters(query.legend) for query in self.queries if not query.is_end)
        return self.legend if longest <= _LETTERS_BESIDE * self.width / HALF_WIDTH else "bottom"


def _letters(legend: str) -> int:
    """Return how many letters a series' name has at most where its labels have the usual ones."""
    values = sum(_LETTERS.get(label, _LETTERS_OF_OTHERS) for label in _LABEL.findall(legend))
    return len(_LABEL.sub("", legend)) + values


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat(Drawn):
    """One number, or one for each series, as it is now. is_text: the series' names are what is told."""

    width: int = 6
    height: int = 3
    is_text: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What a state's number stands for."""

    value: float
    text: str
    colour: Colour


@dataclass(frozen=True, slots=True, kw_only=True)
class States(Drawn):
    """A bar over time for each series, in the colours of its states.

    words: the states by their numbers. least_step_s: from one state to the next, where a finer bar would cost too much.
    """

    words: tuple[Word, ...]
    least_step_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heatmap(Drawn):
    """How many values fell into each bucket of a histogram, over time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table: a label of all its rows, or the values of a query.

    source: the label's name, or the query, whose series have the table's labels and no others.
    unit: of a label whose texts are numbers, which are shown and sorted as such; each row has one.
    width: in pixels; of numbers at least, as their heading may need more. words: what numbers stand for.
    steps: colours of the cell by its number; colours: by its text.
    """

    name: str
    source: str | Query
    unit: str | None = None
    width: int | None = None
    steps: Steps | None = None
    words: tuple[Word, ...] = ()
    colours: dict[str, Colour] = field(default_factory=dict)
    link: Link | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Frame):
    """A row for each series now; queries of equal labels share a row.

    columns: from left to right; the others of the series' labels are not shown.
    sorted_by: names of columns, where the first is equal by the second, and so on.
    """

    columns: tuple[Column, ...]
    sorted_by: tuple[str, ...] = ()
    is_falling: bool = True

    def __post_init__(self) -> None:
        known = [column.name for column in self.columns]
        if not self.queries:
            raise ValueError(f'table "{self.title}" has no column that asks for anything')
        for name in self.sorted_by:
            if name not in known:
                raise ValueError(f'table "{self.title}" has no column "{name}"; it has: {", ".join(known)}')

    @property
    def queries(self) -> tuple[Query, ...]:
        """The queries of its columns."""
        return tuple(column.source for column in self.columns if isinstance(column.source, Query))


Panel = TimeSeries | Stat | States | Heatmap | Table


def definitions(panel: Panel) -> str:
    """Return the definition of each metric that the panel shows, without the ends of intervals."""
    shown = (query.metric for query in panel.queries if query.metric is not None and not query.is_end)
    metrics = {metric.name: metric for metric in shown}
    return "\n\n".join(f"`{name}`: {metric.help}" for name, metric in metrics.items())


# A dashboard.


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A choice at the top of a dashboard; query lists what may be chosen.

    is_single: exactly one thing is chosen: the first of the list, until somebody chooses.
    begins_with_last: the list is sorted from its end on, as names of runs begin with a time.
    ranked_label: the query's series are in their order, and this label of theirs is what may be chosen.
    """

    name: str
    label: str
    query: str
    is_single: bool = False
    begins_with_last: bool = False
    ranked_label: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Panels under a heading; collapsed, their queries are asked only when somebody opens it."""

    title: str
    panels: tuple[Panel, ...]
    is_collapsed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """Marks moments on all panels. query: its series' value is a time, or it marks where the series is there.

    text: Grafana fills in `{{label}}`.
    """

    name: str
    expression: str
    text: str
    colour: Colour
    is_time: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One question, which is the title, and the panels that answer it: what matters first, then rows of details.

    name: stays when the title changes; the rendered file and Grafana's address are named after it.
    hours: how far back it looks at first.
    """

    name: str
    title: str
    summary: str
    variables: tuple[Variable, ...]
    panels: tuple[Panel, ...]
    rows: tuple[Row, ...] = ()
    annotations: tuple[Annotation, ...] = ()
    hours: int = 1

    @property
    def all_panels(self) -> tuple[Panel, ...]:
        """Its panels, those within rows included."""
        return (*self.panels, *(panel for row in self.rows for panel in row.panels))

    @property
    def queries(self) -> tuple[Query, ...]:
        """What all of its panels ask."""
        return tuple(query for panel in self.all_panels for query in panel.queries)
