"""Renders the dashboards, Prometheus's rules, Kubernetes manifests and the page of metrics; writes into a checkout.

Rendered files are committed with the change that caused them. A stale file is the author's slip, not a failure of a
case or node, so the command treats it as misuse (exit code 2).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from collectors.files import drafted, read_regular
from collectors.metrics import registry
from collectors.metrics.agent import RESULT_INFO
from collectors.metrics.metric import Metric
from dashboards import kubernetes, rules
from dashboards.board import BOARDS, TAG, documents, read_board, to_json
from dashboards.expressions import OWNER_LABELS
from dashboards.panels import UID_PREFIX, Json
from dashboards.rules import Alert, BadRules, Group
from dashboards.thresholds import Links, Thresholds, shipped

# The page of all metrics, docs/metrics.md. It shows the first line of the docstring of each module of metrics.

_HEAD = """\
# Every metric

Made by `observatory dashboards render` from `collectors/metrics/`; change it there.

Labels identify the owner of a value:

| owner | labels | exported |
|---|---|---|
| rank | `rank`, `slot`: a small number that distinguishes the runs of one node | while the run is active |
| node | only Prometheus's own `instance` | always by `observatory serve`; by a run's own server while the run is \
active; metrics of results always |
| run | `strategy`, `ranks`, `device`, `precision`, `series`: cases of one series are comparable | for \
the newest finished run of each series that is not ad hoc |

If a row has several names, logs, the history and suite files use the first, and /metrics uses those below it. For a
figure of a whole run /metrics has three metrics: the median over trials, and the low and high end of the 95 % interval
if there is one. Where the values of a label cannot be summed (a total and its parts, or measured and expected values),
each value is a metric of its own, with the value in its name instead of the label.

For a run of more than 64 ranks, /metrics has series of only some ranks, and [statistics over all
ranks](monitoring/exporter.md#runs-of-many-ranks). These have the label `slot`, no `rank`, and names with `_rank_min_`,
`_rank_p50_`, `_rank_p90_`, `_rank_p99_`, `_rank_max_`, `_rank_mean_` or `_rank_sum_`.

Units are base units, ratios run from 0 to 1, and values that cannot be known are absent.
"""


def page(modules: Sequence[ModuleType] | None = None) -> str:
    """Return the page as Markdown, with a table for each module of metrics, in the registry's order."""
    sections = "".join(_section(module) for module in (catalogue_modules() if modules is None else modules))
    return _HEAD + sections


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
    title = module.__name__.rpartition(".")[2].replace("_", " ").capitalize().replace("Gpu", "GPU")
    metrics: tuple[Metric, ...] = module.METRICS
    rows = "".join(f"{_row(metric)}\n" for metric in metrics)
    return (
        f"\n## {title}\n\n{lines[0]}\n\n"
        f"| metric | kind | unit | owner | labels | definition |\n|---|---|---|---|---|---|\n{rows}"
    )


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in (*OWNER_LABELS[metric.scope], *metric.labels)) or "none"
    names = dict.fromkeys([metric.name, *(shown.name for shown in metric.shown())])
    cells = (
        "<br>".join(f"`{name}`" for name in names),
        metric.kind,
        metric.unit.replace("_", " "),
        metric.scope,
        labels,
        metric.help,
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


# Rendering and writing.

CHECKOUT = Path(__file__).parents[1]
RENDERED = Path("dashboards") / "rendered"
RULES = RENDERED / "rules.yaml"
METRICS_PAGE = Path("docs") / "metrics.md"

SCRAPE_S = 15
"""Seconds between two scrapes in a cluster, as in stack/prometheus.yml."""
_MADE_BY = "Made by `observatory dashboards render`"
_RULES_HEAD = f"# {_MADE_BY} from dashboards/rules.yaml.in; change it there.\n"


def render(thresholds: Thresholds | None = None) -> dict[Path, str]:
    """Return the text of every rendered file, by its path from the repository's root.

    thresholds: thresholds of alerts and panels; None for the shipped ones.

    Raises:
        BadBoard: a board's file is wrong.
        BadRules: the template of the rules is wrong.
    """
    thresholds = thresholds or shipped()
    files = {RENDERED / f"{name}.json": to_json(board) for name, board in documents(thresholds).items()}
    return {**files, RULES: rules_text(rules.load(thresholds), thresholds.links), METRICS_PAGE: page()}


class NotOurs(ValueError):
    """A rendered file would overwrite a file that somebody else made."""


def write(root: Path, thresholds: Thresholds | None = None) -> list[Path]:
    """Render into a checkout; return the changed files, including those deleted because nothing makes them any more.

    Raises:
        NotOurs: an existing file was not rendered; nothing is written.
    """
    files = render(thresholds)
    changed = stale(root, files)
    for path in changed:
        if (root / path).is_file() and not any(mark in _text(root / path) for mark in (_MADE_BY, TAG)):
            raise NotOurs(
                f"{root / path} was not made by `observatory dashboards render`, which would overwrite it; move it, or"
                " name another folder"
            )
    for path in changed:
        if path in files:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            with drafted(root / path, mode=0o644, is_any_folder=True) as file:  # Servers of other users read it.
                file.write(files[path].encode())
        else:
            (root / path).unlink()
    return changed


def stale(root: Path, files: Mapping[Path, str]) -> list[Path]:
    """Return the rendered files of a checkout that are missing, differ, or are no longer rendered.

    The last kind are dashboards with our tag; other files in their folder are somebody else's.
    """
    differing = [path for path, text in files.items() if not (root / path).is_file() or _text(root / path) != text]
    paths = sorted(path for path in (root / RENDERED).glob("*.json") if path.is_file() and _has_our_tag(path))
    return [*differing, *(own for path in paths if (own := path.relative_to(root)) not in files)]


def _has_our_tag(path: Path) -> bool:
    try:
        document = json.loads(_text(path))
    except (ValueError, RecursionError):
        return False
    tags = document.get("tags") if isinstance(document, dict) else None
    return isinstance(tags, list) and TAG in tags


def _text(path: Path) -> str:
    return read_regular(path).decode(errors="replace")


def rules_text(groups: tuple[Group, ...], links: Links) -> str:
    """Return a Prometheus rule file of these groups, with these links in its alerts."""
    return _RULES_HEAD + rules.as_yaml([_rules(groups, links)])


def kubernetes_text(thresholds: Thresholds | None = None, labels: Mapping[str, str] | None = None) -> str:
    """Return manifests for the Prometheus operator, and dashboards as ConfigMaps, as one stream for kubectl.

    thresholds: thresholds of alerts and panels; None for the shipped ones. labels: further labels of monitors and
    rules.

    Raises:
        BadBoard: a board's file is wrong.
        BadRules: the template of the rules is wrong.
    """
    thresholds = thresholds or shipped()
    dashboards = {name: to_json(board) for name, board in documents(thresholds).items()}
    document = _rules(rules.load(thresholds), thresholds.links)
    return rules.as_yaml(
        kubernetes.manifests(document, dashboards, labels or {}, scrape_seconds=SCRAPE_S), is_stream=True
    )


def _rules(groups: tuple[Group, ...], links: Links) -> dict[str, Any]:
    return {"groups": [_group(group, links) for group in groups]}


def _group(group: Group, links: Links) -> dict[str, Any]:
    recordings = [msgspec.to_builtins(recording) for recording in group.recordings]
    return {
        "name": group.name,
        "interval": group.interval,
        "rules": [*recordings, *(alert_rule(alert, links) for alert in group.alerts)],
    }


def alert_rule(alert: Alert, links: Links, *, can_query: bool = True) -> dict[str, Any]:
    """Return the alert as Prometheus reads it. can_query: whether its texts may query further series.

    Raises:
        BadRules: it names a dashboard that does not exist.
    """
    query = alert.queried_description if can_query else ""
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.hold,
        **({} if alert.keep_firing_for is None else {"keep_firing_for": alert.keep_firing_for}),
        "labels": msgspec.to_builtins(alert.labels),
        "annotations": {
            "summary": alert.annotations.summary,
            "description": alert.annotations.description + query,
            "runbook": f"observatory runbook {alert.name}",
            **({} if links.runbooks is None else {"runbook_url": f"{links.runbooks}/{alert.runbook}"}),
            "dashboard_url": (
                f"{links.grafana}/d/{UID_PREFIX}{alert.dashboard}?from=now-{window_hours(alert)}h&to=now"
                f"{_choices(alert, can_query=can_query)}"
            ),
        },
    }


LEAST_WINDOW_HOURS = 6
"""How far back an alert's dashboard looks at least, to show what came before the alert."""


def window_hours(alert: Alert) -> int:
    """Return how far back the alert's dashboard looks: far enough to show everything that the alert evaluates."""
    hours = int(_board_of(alert)["time"]["from"].removeprefix("now-").removesuffix("h"))
    return max(LEAST_WINDOW_HOURS, rules.minutes(alert.looks_back) // 60 + 1, hours)


def _board_of(alert: Alert) -> Json:
    if alert.dashboard not in BOARDS:
        raise BadRules(
            f'{rules.TEMPLATE.name}: {alert.name}: dashboard "{alert.dashboard}" is unknown; it may be'
            f" {', '.join(BOARDS)}"
        )
    return read_board(alert.dashboard)


def _choices(alert: Alert, *, can_query: bool) -> str:
    """Return the part of the address that chooses the alert's subject on the dashboard, as far as labels show it."""
    return "".join(_choice(variable, can_query=can_query) for variable in _board_of(alert)["variables"])


def _choice(variable: Mapping[str, str], *, can_query: bool) -> str:
    """Return the part for one variable; the name of a series is queried if the alert has only its id."""
    label, is_named = label_of(variable), f"&var-{variable['name']}="
    chosen = f"{{{{ with $labels.{label} }}}}{is_named}{{{{ . | urlquery }}}}"
    if label == "name" and can_query:
        # The name is known as long as the verdict is, even if no exporter shows the series any more.
        query = f"topk(1, max by (name) (last_over_time({RESULT_INFO.name}{{series=%q}}[36h])))"
        chosen += (
            f"{{{{ else }}}}{{{{ with $labels.series }}}}{{{{ with query (printf `{query}` .) }}}}"
            f"{is_named}{{{{ (. | first).Labels.name | urlquery }}}}{{{{ end }}}}{{{{ end }}}}"
        )
    return chosen + "{{ end }}"


def label_of(variable: Mapping[str, str]) -> str:
    """Return the label whose values a variable offers: `instance` for the variable `node`.

    It stands in the variable's regular expression, or at the end of its query: `label_values(metric, label)`.
    """
    if "regex" in variable:
        return variable["regex"].removeprefix("/").partition("=")[0]
    return variable["query"].strip().rpartition(", ")[2].removesuffix(")")
