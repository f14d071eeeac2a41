"""Pages that show several clusters or kinds of hardware take no value of one for that of another."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.metrics.agent import RUN_INFO
from collectors.metrics.gate import VERDICT, VERDICT_CHANGE
from collectors.metrics.rank import STEP_SECONDS
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.dashboards.boards import Board, board
from tests.stack.alerts.rehearsal import Rehearsal, shown
from tests.support.grafana_expressions import with_choices

pytestmark = pytest.mark.stack

OTHER = "node2:9464"
RESULT = {"strategy": "ddp", "ranks": "1", "device": "cuda", "precision": "bf16", "series": "s"}
ABOUT = {"strategy": "ddp", "ranks": "1", "series": "s", "name": "ddp on 1"}


def _asked(dashboard: Board, title: str, **chosen: str) -> str:
    """The first query of a panel, without the labels of its answer."""
    expression = with_choices(dashboard.panel(title).queries[0].expression, **chosen)
    return f"max without (cluster, series) ({expression})"


@pytest.mark.parametrize("chosen", [{"cluster": "east"}, {}], ids=["east", "all"])
@pytest.mark.parametrize(
    ("dashboard", "title"), [(board("what-needs-me-now"), "Step vs result"), (board("one-run"), "Step vs result")]
)
def test_a_step_is_held_against_the_result_of_its_own_cluster(
    dashboard: Board, title: str, chosen: dict[str, str], tmp_path: Path
) -> None:
    series = {
        **shown(RUN_INFO, "1x9", **ABOUT, run="a", slot="0", cluster="east"),
        **shown(STEP_SECONDS, "1.5x9", slot="0", rank="0", cluster="east"),
        **shown(RUN_STEP_SECONDS.statistic("median"), "1x9", **RESULT, cluster="east"),
        **shown(RUN_STEP_SECONDS.statistic("median"), "2x9", **RESULT, cluster="west", instance=OTHER),
    }
    Rehearsal(series=series, folder=tmp_path).gives(_asked(dashboard, title, **chosen), {"{}": 0.5}, at_minutes=5)


def _verdict(verdict: str, change: str, **labels: str) -> dict[str, str]:
    figure = {"suite": "nightly", "case": "ddp", "ranks": "8", "figure": "step", **labels}
    return {**shown(VERDICT, "1x9", **figure, verdict=verdict), **shown(VERDICT_CHANGE, f"{change}x9", **figure)}


def test_a_verdict_has_the_change_of_its_own_hardware_and_cluster(tmp_path: Path) -> None:
    series = {
        **_verdict("confirmed", "0.2", hardware="h100", series="s", cluster="east"),
        **_verdict("improvement", "-0.05", hardware="h200", series="t", cluster="east"),
        **_verdict("creep", "0.1", hardware="h100", series="s", cluster="west", instance=OTHER),
    }
    (query,) = board("what-needs-me-now").panel("Figures that changed, by the gate's verdict").queries
    Rehearsal(series=series, folder=tmp_path).gives(
        f"max by (cluster, hardware, verdict) ({with_choices(query.expression)})",
        {
            '{cluster="east", hardware="h100", verdict="confirmed"}': 0.2,
            '{cluster="east", hardware="h200", verdict="improvement"}': -0.05,
            '{cluster="west", hardware="h100", verdict="creep"}': 0.1,
        },
        at_minutes=5,
    )
