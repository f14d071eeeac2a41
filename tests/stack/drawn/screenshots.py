"""Draws the pictures of docs/pictures: dashboards as they open, with Grafana's own components.

python -m tests.stack.drawn.screenshots docs/pictures
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.stack.drawn.drawing import Job, as_it_opens, drawn, given
from tests.stack.drawn.states import STATES
from tests.stack.pages.asking import Page, rendered

PICTURES = {
    "what-needs-me-now": "demo",
    "one-run": "demo",
    "fleet": "demo",
    "nightly": "30 nights",
    "does-it-scale": "30 nights",
}
"""The state that each picture shows."""
CHOSEN = {"demo": {"run": "demonstration"}, "30 nights": {"series": "ddp on 6, 8b, bf16, cuda"}}
HIGHEST_PX, POINTS = 1600, 300


def main(folder: Path) -> None:
    """Draw all pictures into the folder."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as started:
        made = Path(name)
        states = {}
        for state in set(PICTURES.values()):
            (made / state).mkdir()
            states[state] = started.enter_context(STATES[state](made / state))
        jobs = []
        for dashboard, state in PICTURES.items():
            known, shown = states[state], as_it_opens(rendered(dashboard))
            names = {variable["name"] for variable in shown["templating"]["list"]}
            page = Page(
                dashboard=shown,
                prometheus=known.prometheus,
                end_s=known.end_s,
                back_s=known.back_s,
                scrape_s=known.scrape_s,
                chosen={name: value for name, value in CHOSEN[state].items() if name in names},
                points=POINTS,
            )
            (made / f"{dashboard}.json").write_text(json.dumps(given(page)))
            picture = folder / f"{dashboard}.png"
            jobs.append(Job(page=made / f"{dashboard}.json", picture=picture, height=HIGHEST_PX))
        for job, _ in zip(jobs, drawn(jobs), strict=True):
            print(job.picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
