"""Grafana's names for our units, colours and data source, and its forms of steps, links and words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from dashboards.model import Colour, Link, Steps, Word

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders.dashboard import DashboardLink, ThresholdsConfig
    from grafana_foundation_sdk.models.common import DataSourceRef
    from grafana_foundation_sdk.models.dashboard import ValueMapping

DATA_SOURCE_VARIABLE = "datasource"
DATA_SOURCE_UID, DATA_SOURCE_NAME = "parallel-observatory", "Parallel Observatory"
"""Of the data source that is provisioned, or that a push makes."""
TAG = "parallel-observatory"
"""What all our dashboards have in common, so that each leads to the others, and a push knows which are ours."""
UID_PREFIX = "observatory-"
"""Of the UID of each of our dashboards, which so is no one's of another origin."""
GRAFANA_UNITS = {
    "seconds": "s",
    "bytes": "bytes",
    "ratio": "percentunit",
    "per_second": "count:/s",
    "flops_per_second": "flops",
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
    "count": "short",
    "number": "none",
    "info": "bool_yes_no",
}
"""Grafana's name for each unit of a metric that a panel may show, and for numbers that are written in full."""
DECIMALS = {"ratio": 1, "count": 0, "errors": 0, "cases": 0}
"""Digits behind the point of numbers and cells: else Grafana writes -0.0500 %, and a counter's growth as 6.01."""
COUNTED = frozenset({"count", "errors", "cases"})
"""Units of which there are whole numbers alone, also on an axis; an average of tasks is none."""
NO_VALUE = "-"
_ABSENT = "#6e6e6e"
COLOURS: dict[Colour, str] = {
    "good": "green",
    "warning": "orange",
    "bad": "red",
    "information": "blue",
    "plain": "text",
}


def source() -> DataSourceRef:
    """Return the data source that is chosen at the top of the dashboard."""
    from grafana_foundation_sdk.models.common import DataSourceRef

    return DataSourceRef(type_val="prometheus", uid=f"${{{DATA_SOURCE_VARIABLE}}}")


def thresholds(steps: Steps, *, plain: str = "transparent", good: str = COLOURS["good"]) -> ThresholdsConfig:
    """Return the steps in Grafana's form, whose first has no value.

    plain: the colour of what is neither good nor bad. An area of it is not painted, but a cell's text must be seen.
    good: the colour of what is good; areas behind lines are painted only where something is not.
    """
    from grafana_foundation_sdk.builders.dashboard import ThresholdsConfig
    from grafana_foundation_sdk.models.dashboard import Threshold, ThresholdsMode

    colours = {**COLOURS, "plain": plain, "good": good}
    first = Threshold(value=None, color=colours[steps.below])
    others = [Threshold(value=step.value, color=colours[step.colour]) for step in steps.steps]
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps([first, *others])


def mappings(
    words: Sequence[Word], colours: dict[str, Colour], *, absent: Literal["plain", "absent"] | None = None
) -> list[ValueMapping]:
    """Return what numbers stand for, and which colours texts have, in Grafana's form.

    absent: the colour of what has no value: that of plain text, or grey; None where a gap shows it.
    """
    from grafana_foundation_sdk.models.dashboard import (
        DashboardSpecialValueMapOptions,
        SpecialValueMap,
        SpecialValueMatch,
        ValueMap,
        ValueMappingResult,
    )

    results = {
        f"{word.value:g}": ValueMappingResult(text=word.text, color=COLOURS[word.colour], index=place)
        for place, word in enumerate(words)
    }
    results |= {
        text: ValueMappingResult(text=text, color=COLOURS[colour], index=place)
        for place, (text, colour) in enumerate(colours.items())
    }
    without = ValueMappingResult(
        text=NO_VALUE, color=_ABSENT if absent == "absent" else COLOURS["plain"], index=len(results)
    )
    return [
        *([ValueMap(options=results)] if results else []),
        *(
            SpecialValueMap(options=DashboardSpecialValueMapOptions(match=match, result=without))
            for match in (SpecialValueMatch.NULL_AND_NAN, SpecialValueMatch.EMPTY)
            if absent is not None
        ),
    ]


def data_link(link: Link, *, in_table: bool) -> DashboardLink:
    """Return the link from a value. In a table it takes the row's cells, elsewhere the series' labels."""
    from grafana_foundation_sdk.builders.dashboard import DashboardLink

    return DashboardLink(link.title).url(_url(link, in_table=in_table))


def url_of_cells(link: Link) -> dict[str, Any]:
    """Return the link in the form of a cell's override."""
    return {"title": link.title, "url": _url(link, in_table=True)}


def _url(link: Link, *, in_table: bool) -> str:
    place = '${{__data.fields["{}"]}}' if in_table else "${{__field.labels.{}}}"
    chosen = "".join(f"&var-{quote(name)}={place.format(label)}" for name, label in link.choices.items())
    kept = "".join(f"&${{{name}:queryparam}}" for name in (DATA_SOURCE_VARIABLE, *link.kept))
    return f"/d/{UID_PREFIX}{link.dashboard}?${{__url_time_range}}{kept}{chosen}"
