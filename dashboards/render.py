"""Writes what is made from the catalogue: dashboards, rules and the page of metrics.

Rendered files are committed with the change that made them. A file that no longer fits is the author's slip and not a
failure of a case or of a node, so the command answers it as misuse, with code 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dashboards import metric_page, panels
from dashboards.alerts.rule import Alert, Group
from dashboards.roster import DASHBOARDS, GROUPS

CHECKOUT = Path(__file__).parents[1]
RENDERED = Path("dashboards") / "rendered"
RULES = RENDERED / "rules.yaml"
METRICS_PAGE = Path("docs") / "metrics.md"

_RULES_HEAD = "# Made by `observatory dashboards render` from dashboards/alerts/; change it there.\n"


def render() -> dict[Path, str]:
    """Every rendered file and its text, by its path from the repository's root.

    Raises:
        SdkMissing: the extra `dashboards` is not installed.
    """
    files = {RENDERED / f"{dashboard.name}.json": panels.to_json(dashboard) for dashboard in DASHBOARDS}
    return {**files, RULES: rules_text(GROUPS), METRICS_PAGE: metric_page.page()}


def write(root: Path) -> list[Path]:
    """Render into a checkout; the files that changed, and those that went because nothing makes them any more."""
    files = render()
    changed = stale(root, files)
    for path in changed:
        if path in files:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(files[path])
        else:
            (root / path).unlink()
    return changed


def stale(root: Path, files: Mapping[Path, str]) -> list[Path]:
    """The rendered files of a checkout that are missing, differ, or are made by nothing any more."""
    differing = [path for path, text in files.items() if _text(root / path) != text]
    there = sorted(path.relative_to(root) for path in (root / RENDERED).glob("*.*"))
    return [*differing, *(path for path in there if path not in files)]


def rules_text(groups: tuple[Group, ...]) -> str:
    """A Prometheus rule file of these groups."""
    import yaml

    class Readable(yaml.SafeDumper):
        """Writes a text of several lines as such."""

    def readable(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Readable.add_representer(str, readable)
    document = {"groups": [_group(group) for group in groups]}
    return _RULES_HEAD + yaml.dump(document, Dumper=Readable, sort_keys=False, width=10_000)


def _group(group: Group) -> dict[str, Any]:
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
        "rules": [*recordings, *(_alert(alert) for alert in group.alerts)],
    }


def _alert(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": f"{alert.hold_minutes}m",
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.description, "runbook": alert.runbook},
    }


def _text(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None
