"""Renders the dashboards, Prometheus' rules and the page of metrics, and writes them into a checkout.

Rendered files are committed with the change that made them. A stale file is the author's slip, and not a failure of a
case or of a node, so the command treats it as misuse, with code 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from collectors.metrics import registry
from collectors.metrics.metric import Metric
from dashboards import grafana
from dashboards.alerts import agents, efficiency, gate, gpus, hosts, links, live, suites
from dashboards.boards import communication, gpu_health, host_load, pipeline, training_speed
from dashboards.model import Alert, Dashboard, Group
from dashboards.promql import OWNER_LABELS
from dashboards.thresholds import Links, Thresholds, shipped

# The page of all metrics, docs/metrics.md. It shows the first line of the docstring of each module of metrics.

_HEAD = """\
# Every metric

Made by `observatory dashboards render` from `collectors/metrics/`; change it there.

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
    """Return the page as Markdown: a table for each module of metrics, in the registry's order."""
    return _HEAD + "".join(_section(module) for module in (catalogue_modules() if modules is None else modules))


def catalogue_modules() -> tuple[ModuleType, ...]:
    """Return the modules of metrics, in the order in which the registry lists their metrics."""
    place = {metric.name: number for number, metric in enumerate(registry.METRICS)}
    modules = [
        module
        for module in vars(registry).values()
        if isinstance(module, ModuleType) and module.__name__.startswith("collectors.metrics.")
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


# The registry of dashboards and groups of rules, one line each.

DASHBOARDS: tuple[Dashboard, ...] = (
    training_speed.DASHBOARD,
    communication.DASHBOARD,
    pipeline.DASHBOARD,
    gpu_health.DASHBOARD,
    host_load.DASHBOARD,
)
GROUPS: tuple[Callable[[Thresholds], Group], ...] = (
    gate.rules,
    efficiency.rules,
    suites.rules,
    live.rules,
    gpus.rules,
    links.rules,
    hosts.rules,
    agents.rules,
)


def groups(thresholds: Thresholds) -> tuple[Group, ...]:
    """Return the groups of rules with these thresholds, in the registry's order."""
    return tuple(rules(thresholds) for rules in GROUPS)


# Rendering and writing.

CHECKOUT = Path(__file__).parents[1]
RENDERED = Path("dashboards") / "rendered"
RULES = RENDERED / "rules.yaml"
METRICS_PAGE = Path("docs") / "metrics.md"

_LABELS = {"node": "instance"}
"""The label whose values a dashboard's variable has, where the two have different names."""
_RULES_HEAD = "# Made by `observatory dashboards render` from dashboards/alerts/; change it there.\n"


def render(thresholds: Thresholds | None = None) -> dict[Path, str]:
    """Return the text of every rendered file, by its path from the repository's root.

    thresholds: of the alerts; None for the shipped ones.

    Raises:
        SdkMissing: the extra `dashboards` is not installed.
    """
    files = {RENDERED / f"{dashboard.name}.json": grafana.to_json(dashboard) for dashboard in DASHBOARDS}
    thresholds = thresholds or shipped()
    return {**files, RULES: rules_text(groups(thresholds), thresholds.links), METRICS_PAGE: page()}


def write(root: Path, thresholds: Thresholds | None = None) -> list[Path]:
    """Render into a checkout; return the files that changed, and those deleted because nothing makes them any more."""
    files = render(thresholds)
    changed = stale(root, files)
    for path in changed:
        if path in files:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(files[path])
        else:
            (root / path).unlink()
    return changed


def stale(root: Path, files: Mapping[Path, str]) -> list[Path]:
    """Return the rendered files of a checkout that are missing, differ, or that nothing makes any more."""
    differing = [
        path for path, text in files.items() if not (root / path).is_file() or (root / path).read_text() != text
    ]
    there = sorted(path.relative_to(root) for path in (root / RENDERED).glob("*.*"))
    return [*differing, *(path for path in there if path not in files)]


def rules_text(groups: tuple[Group, ...], links: Links) -> str:
    """Return a Prometheus rule file of these groups, whose alerts link to these places."""
    import yaml

    class Readable(yaml.SafeDumper):
        """Writes a text of several lines as a block."""

    def readable(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Readable.add_representer(str, readable)
    document = {"groups": [_group(group, links) for group in groups]}
    return _RULES_HEAD + yaml.dump(document, Dumper=Readable, sort_keys=False, width=10_000)


def _group(group: Group, links: Links) -> dict[str, Any]:
    recordings = [
        {
            "record": recording.record,
            "expr": recording.expression,
            **({"labels": recording.labels} if recording.labels else {}),
        }
        for recording in group.recordings
    ]
    return {
        "name": group.name,
        "interval": f"{group.interval_minutes}m",
        "rules": [*recordings, *(_alert(alert, links) for alert in group.alerts)],
    }


def _alert(alert: Alert, links: Links) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": f"{alert.hold_minutes}m",
        **({"keep_firing_for": f"{alert.keep_minutes}m"} if alert.keep_minutes else {}),
        "labels": {"severity": alert.severity, "component": alert.component},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": f"{links.runbooks}/{alert.runbook}",
            "dashboard_url": f"{links.grafana}/d/{alert.dashboard}?from=now-6h&to=now{_choices(alert)}",
        },
    }


def _choices(alert: Alert) -> str:
    """Return the address' part that chooses on the dashboard what the alert is about, as far as its labels tell."""
    (dashboard,) = (one for one in DASHBOARDS if one.name == alert.dashboard)
    labels = {variable.name: _LABELS.get(variable.name, variable.name) for variable in dashboard.variables}
    return "".join(
        f"{{{{ with $labels.{label} }}}}&var-{name}={{{{ . | urlquery }}}}{{{{ end }}}}"
        for name, label in labels.items()
    )
