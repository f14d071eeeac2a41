"""Draws every dashboard of the replayed runs with Grafana's own components, for people to look at.

    python -m tests.stack.replay.pictures PICTURES [TRACES [DASHBOARD ...]]

A dashboard is drawn with its rows opened, and "Who waits for whom?" also as it opens: the picture of docs/measured.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.dashboards.boards import all_boards
from tests.stack.drawn.drawing import Job, as_it_opens, drawn, given, with_open_rows
from tests.stack.drawn.states import State
from tests.stack.pages.asking import Page, rendered
from tests.stack.replay.past import replayed_past
from tests.stack.replay.runs import TRACES


def main(pictures: Path, traces: Path = TRACES, *names: str) -> None:
    """Draw dashboards into a folder. traces: the folder of the traces. names: of dashboards; all by default."""
    pictures.mkdir(exist_ok=True)
    shown = {
        board.name: with_open_rows(rendered(board.name)) for board in all_boards() if board.name in names or not names
    }
    shown["replay"] = as_it_opens(rendered("who-waits-for-whom"))
    with tempfile.TemporaryDirectory() as made:
        jobs = []
        with replayed_past(Path(made), traces) as state:
            for name, dashboard in shown.items():
                file = Path(made, f"{name}.json")
                file.write_text(json.dumps(given(_page(dashboard, state))))
                jobs.append(Job(page=file, picture=pictures.absolute() / f"{name}.png"))
        for job, _ in zip(jobs, drawn(jobs), strict=True):
            print(job.picture)


def _page(dashboard: dict[str, Any], state: State) -> Page:
    return Page(
        dashboard=dashboard,
        prometheus=state.prometheus,
        end_s=state.end_s,
        back_s=state.back_s,
        scrape_s=state.scrape_s,
        chosen={},
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else TRACES, *sys.argv[3:])
