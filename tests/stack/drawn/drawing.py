"""Draws pages with Grafana's own components in a headless Chromium, and measures what stands on them.

`make drawing` installs what this needs, from npm, into `.drawing`; without it a test skips with the reason.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboards.render import CHECKOUT
from tests.dashboards import grafana_lint
from tests.stack.pages.asking import Page
from tests.support.servers import absent_server, program

HERE = Path(__file__).parent
INSTALLED = CHECKOUT / ".drawing"
_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A page to draw. page: what `given` made. picture: where its PNG goes. height: of the picture at most."""

    page: Path
    width: int = 1600
    picture: Path | None = None
    height: int | None = None


def given(page: Page) -> dict[str, Any]:
    """Ask Prometheus all that a page shows, and return it as the page's script takes it."""
    dashboard, values = dict(page.dashboard), page.variables()
    panels = [
        {"panel": panel, "targets": [page.drawn(panel, target, values) for target in panel["targets"]]}
        for panel in grafana_lint.all_panels(dashboard)
    ]
    variables = [one for one in dashboard["templating"]["list"] if one["type"] == "query"]
    return {
        "title": dashboard["title"],
        "start_s": page.end_s - page.back_s,
        "end_s": page.end_s,
        "chosen": [(one["label"], values[one["name"]].replace("\\", "").replace(".*", "All")) for one in variables],
        "rows": [
            {key: row[key] for key in ("id", "title", "gridPos")} for row in dashboard["panels"] if row["type"] == "row"
        ],
        "panels": panels,
    }


def with_open_rows(dashboard: dict[str, Any]) -> dict[str, Any]:
    """Return the dashboard with its collapsed rows opened; their panels have their places already."""
    panels = [one for panel in dashboard["panels"] for one in ({**panel, "panels": []}, *panel.get("panels", []))]
    return {**dashboard, "panels": panels}


def as_it_opens(dashboard: dict[str, Any]) -> dict[str, Any]:
    """Return the dashboard with its collapsed rows as headings alone, one below the other."""
    panels, closed = [], 0
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        panels.append({**panel, "panels": [], "gridPos": {**place, "y": place["y"] - closed}})
        closed += max((one["gridPos"]["y"] + one["gridPos"]["h"] for one in panel.get("panels", [])), default=0)
        closed -= place["y"] + 1 if panel.get("panels") else 0
    return {**dashboard, "panels": panels}


def needed() -> None:
    """Skip the test that needs it where what draws is not installed."""
    with _bundled():
        pass


def drawn(jobs: Iterable[Job]) -> Iterator[list[dict[str, Any]]]:
    """Draw each page, and yield what was measured of its panels."""
    with _bundled() as (node, chromium):
        lines = "".join(
            json.dumps(
                {
                    "page": str(job.page),
                    "width": job.width,
                    "picture": None if job.picture is None else str(job.picture),
                    "height": job.height,
                }
            )
            + "\n"
            for job in jobs
        )
        ended = subprocess.run(
            [node, HERE / "draw.mjs", INSTALLED, chromium],
            input=lines,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr[-3000:]
    yield from map(json.loads, ended.stdout.splitlines())


@contextmanager
def _bundled() -> Iterator[tuple[str, str]]:
    """Make one script of ours and Grafana's, once for each change of ours; yields the paths of node and Chromium."""
    node, chromium = program("node", "nodejs"), shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        absent_server("chromium is not installed (apt-get install chromium)")
    if not (INSTALLED / "node_modules" / "@grafana" / "ui").is_dir():
        absent_server(f"Grafana's components are not in {INSTALLED} (`make drawing` installs them)")
    sources = [HERE / name for name in ("bundle.mjs", "page.jsx", "panels.jsx", "grafana.js", "package-lock.json")]
    bundle = INSTALLED / "bundle.js"
    if not bundle.is_file() or bundle.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        made = subprocess.run(
            [node, HERE / "bundle.mjs", INSTALLED], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        assert made.returncode == 0, made.stderr[-3000:]
    yield node, chromium
