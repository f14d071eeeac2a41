"""The page of all metrics (docs/metrics.md), made from the catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from collectors.catalogue import every
from collectors.metric import Metric
from dashboards.promql import OWNER_LABELS

_HEAD = """\
# Every metric

Made by `observatory dashboards render` from `collectors/catalogue/`; change it there.

Whom a value belongs to, the exporter says with labels:

| owner | labels | shown |
|---|---|---|
| rank | `rank`, `slot`: a small number that tells apart the runs of one node | while the run goes |
| node | none beside Prometheus' own `instance` | by `observatory serve` always, by a run's own server while it goes; \
what tells of results, always |
| run | `strategy`, `ranks`, `device`, `precision`, `series`: cases of one series compare with each other; \
`bound`: `median`, and `low` and `high` where there is an interval | the newest finished run of each series \
that is not ad hoc |

Units are base units, ratios run from 0 to 1, and what cannot be known is absent.
"""


def page(modules: Sequence[ModuleType] | None = None) -> str:
    """The page as Markdown: a table for each module of the catalogue, in the catalogue's order."""
    return _HEAD + "".join(_section(module) for module in (catalogue_modules() if modules is None else modules))


def catalogue_modules() -> tuple[ModuleType, ...]:
    """The catalogue's modules, in the order in which it lists their metrics."""
    place = {metric.name: number for number, metric in enumerate(every.METRICS)}
    modules = [
        module
        for module in vars(every).values()
        if isinstance(module, ModuleType) and module.__name__.startswith("collectors.catalogue.")
    ]
    return tuple(sorted(modules, key=lambda module: min(place[metric.name] for metric in module.METRICS)))


def _section(module: ModuleType) -> str:
    lines = (module.__doc__ or "").strip().splitlines()
    metrics: tuple[Metric, ...] = module.METRICS
    rows = "".join(f"{_row(metric)}\n" for metric in metrics)
    return (
        f"\n## {module.__name__.rpartition('.')[2].capitalize()}\n\n{lines[0]}\n\n"
        f"| metric | kind | unit | owner | labels | definition |\n|---|---|---|---|---|---|\n{rows}"
    )


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in (*OWNER_LABELS[metric.scope], *metric.labels)) or "none"
    cells = (f"`{metric.name}`", metric.kind, metric.unit.replace("_", " "), metric.scope, labels, metric.help)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
