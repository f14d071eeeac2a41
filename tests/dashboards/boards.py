"""The dashboards as tests ask for them: panels with their queries, read from the JSON that Grafana gets."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from dashboards import board as boards
from dashboards.panels import NO_VALUE
from dashboards.thresholds import shipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What a panel asks. legend: the name of its series, or of its column in a table.

    is_end: of an interval, whose line has no entry in the legend.
    """

    expression: str
    legend: str
    has_exemplars: bool = False
    is_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel: its title, Grafana's type, its queries and all of its JSON."""

    title: str
    kind: str
    queries: tuple[Query, ...]
    document: dict[str, Any]

    @property
    def absent(self) -> str:
        """The sentence that says why nothing is shown."""
        text: str = self.document["description"].rpartition("When empty: ")[2]
        return text

    @property
    def columns(self) -> dict[str, str]:
        """Of a table's columns the label, or Grafana's name of the value, by the names that stand above them."""
        renamed = self.document["transformations"][-1]["options"]["renameByName"]
        return {name: field for field, name in renamed.items()}

    def looks(self, name: str) -> dict[str, Any]:
        """The properties of a table's column, or of a line."""
        return {
            entry["id"]: entry["value"]
            for override in self.document["fieldConfig"]["overrides"]
            if override["matcher"]["options"] == name
            for entry in override["properties"]
        }

    @property
    def sorted_by(self) -> tuple[str, ...]:
        """The columns by which a table is sorted."""
        return tuple(entry["displayName"] for entry in self.document["options"].get("sortBy", ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A dashboard by its name, and all of its JSON."""

    name: str
    document: dict[str, Any]

    @property
    def title(self) -> str:
        """The question that it answers."""
        return str(self.document["title"])

    @property
    def panels(self) -> tuple[Panel, ...]:
        """The panels that stand in no row."""
        return tuple(_panel(panel) for panel in self.document["panels"] if panel["type"] != "row")

    @property
    def rows(self) -> dict[str, tuple[Panel, ...]]:
        """The panels of each row, by its title."""
        rows = (row for row in self.document["panels"] if row["type"] == "row")
        return {row["title"]: tuple(map(_panel, row["panels"])) for row in rows}

    @property
    def all_panels(self) -> tuple[Panel, ...]:
        """Its panels, those in rows included."""
        return (*self.panels, *(panel for panels in self.rows.values() for panel in panels))

    @property
    def queries(self) -> tuple[Query, ...]:
        """What all of its panels ask."""
        return tuple(query for panel in self.all_panels for query in panel.queries)

    @property
    def variables(self) -> list[dict[str, Any]]:
        """The choices at its top, but for the data source."""
        return [entry for entry in self.document["templating"]["list"] if entry["type"] == "query"]

    def panel(self, title: str) -> Panel:
        """The panel with this title."""
        (panel,) = (panel for panel in self.all_panels if panel.title == title)
        return panel

    def variable(self, name: str) -> dict[str, Any]:
        """The choice of this name."""
        (variable,) = (variable for variable in self.variables if variable["name"] == name)
        return variable


def _panel(document: dict[str, Any]) -> Panel:
    targets = document["targets"]
    legends = [target["legendFormat"] for target in targets]
    if document["type"] == "table":
        names = document["transformations"][-1]["options"]["renameByName"]
        legends = [names[field] for field in sorted(names) if field.startswith("Value")]
    hidden = {
        override["matcher"]["options"]
        for override in document["fieldConfig"]["overrides"]
        if "custom.hideFrom" in [look["id"] for look in override["properties"]]
    }
    queries = tuple(
        Query(
            expression=target["expr"],
            legend=legend,
            has_exemplars=target.get("exemplar", False),
            is_end=target["refId"] in hidden,
        )
        for target, legend in zip(targets, legends, strict=True)
        if legend != NO_VALUE  # What stands for a name where there is none.
    )
    return Panel(title=document["title"], kind=document["type"], queries=queries, document=document)


@functools.cache
def all_boards() -> tuple[Board, ...]:
    """All dashboards, with the shipped thresholds."""
    return tuple(Board(name=name, document=document) for name, document in boards.documents(shipped()).items())


def board(name: str) -> Board:
    """A dashboard by its name."""
    (found,) = (one for one in all_boards() if one.name == name)
    return found
