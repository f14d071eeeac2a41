"""Numbers of pages: a winner where intervals lie apart, nothing where nothing is watched, and parts that add up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from collectors.metrics.agent import RESULT_INFO
from collectors.metrics.gpu import GPU_ENERGY_JOULES, GPU_POWER_WATTS, GPU_STATE, GPU_TASKS, GPU_UTILIZATION, RANK_GPU
from collectors.metrics.metric import STATISTICS
from collectors.metrics.results import RUN_MEMORY_ACCOUNT_BYTES, RUN_TOKENS_PER_SECOND_PER_DEVICE
from tests.dashboards.boards import Board, board
from tests.stack.alerts.rehearsal import Rehearsal, shown
from tests.support.grafana_expressions import with_choices

pytestmark = pytest.mark.stack


def _asked(dashboard: Board, title: str, *by: str, **chosen: str) -> str:
    """What a panel's only query answers, with these labels alone."""
    query = dashboard.panel(title).queries[0]
    return f"max by ({', '.join(by)}) ({with_choices(query.expression, **chosen)})"


# Which strategy pays?

FASTEST = "Fastest strategy"
MEMORY = RUN_MEMORY_ACCOUNT_BYTES.alone(part="total", account="measured")


def _results(tokens: Mapping[str, tuple[float, float, float] | float]) -> dict[str, str]:
    """Results on eight ranks by their names: median, low and high, or a median without an interval."""
    series: dict[str, str] = {}
    for name, values in tokens.items():
        owner = {"strategy": name, "ranks": "8", "device": "cuda", "precision": "bf16", "series": name}
        series |= shown(RESULT_INFO, "1x9", strategy=name, ranks="8", series=name, name=name)
        for which, value in zip(STATISTICS, values if isinstance(values, tuple) else (values,), strict=False):
            series |= shown(RUN_TOKENS_PER_SECOND_PER_DEVICE.statistic(which), f"{value}x9", **owner)
    return series


@pytest.mark.parametrize(
    ("tokens", "winner"),
    [
        ({"ddp": (10.0, 9.0, 11.0), "fsdp": (8.0, 7.0, 8.5)}, "ddp"),
        ({"ddp": (10.0, 9.0, 11.0), "fsdp": (8.0, 7.0, 9.5)}, "no difference shown"),
        ({"ddp": (10.0, 9.0, 11.0), "fsdp": (10.0, 9.0, 11.0)}, "no difference shown"),
        ({"ddp": (10.0, 9.0, 11.0), "fsdp": 8.0}, "no difference shown"),
        ({"ddp": 10.0, "fsdp": (8.0, 7.0, 8.5)}, "no difference shown"),
        # What is second by its median may reach further than what is third.
        ({"ddp": (10.0, 9.0, 11.0), "fsdp": (8.0, 7.0, 8.5), "tp": (7.0, 4.0, 10.0)}, "no difference shown"),
        ({"ddp": (10.0, 9.0, 11.0)}, "only one series"),
    ],
)
def test_a_winner_is_named_only_where_its_interval_lies_apart_from_all_others(
    tokens: Mapping[str, tuple[float, float, float] | float], winner: str, tmp_path: Path
) -> None:
    expression = f"count by (name) ({_asked(board('which-strategy-pays'), FASTEST, 'name')})"
    Rehearsal(series=_results(tokens), folder=tmp_path).gives(expression, {f'{{name="{winner}"}}': 1.0}, at_minutes=5)


def test_the_least_memory_wins_where_its_interval_ends_below_all_others(tmp_path: Path) -> None:
    series: dict[str, str] = {}
    for name, values in {"a": (2, 1, 3), "b": (5, 4, 6)}.items():
        owner = {"strategy": name, "ranks": "8", "device": "cuda", "precision": "bf16", "series": name}
        series |= shown(RESULT_INFO, "1x9", strategy=name, ranks="8", series=name, name=name)
        for which, value in zip(STATISTICS, values, strict=True):
            series |= shown(MEMORY.statistic(which), f"{value}x9", **owner)
    query = _asked(board("which-strategy-pays"), "Least memory of a rank", "name")
    rehearsal = Rehearsal(series=series, folder=tmp_path)
    rehearsal.gives(f"count by (name) ({query})", {'{name="a"}': 1.0}, at_minutes=5)


def test_one_world_size_is_compared_at_a_time() -> None:
    (ranks,) = (one for one in board("which-strategy-pays").variables if one["name"] == "ranks")
    assert not ranks["multi"]
    assert [query for query in board("which-strategy-pays").queries if "$ranks" not in query.expression] == []


# The fleet.

GPUS = {
    **{k: v for gpu in "012" for k, v in shown(GPU_STATE, "1x9", gpu=gpu, state="answering").items()},
    **shown(GPU_STATE, "1x9", gpu="3", state="lost"),
    **shown(RANK_GPU, "1x9", gpu="0", slot="0", rank="0", run="a", slice=""),
    **shown(GPU_TASKS, "0x9", gpu="1"),
    **shown(GPU_TASKS, "2x9", gpu="2"),
    **{k: v for gpu in "012" for k, v in shown(GPU_POWER_WATTS, "200x9", gpu=gpu).items()},
    **{k: v for gpu in "012" for k, v in shown(GPU_ENERGY_JOULES, "0+6000x60", gpu=gpu).items()},
}


@pytest.mark.parametrize(
    ("title", "value"),
    [("GPUs responding", 3), ("Allocated GPUs", 2), ("Idle GPUs", 1), ("Power of all GPUs", 600)],
)
def test_gpus_that_answer_are_allocated_or_idle_and_their_power_adds_up(
    title: str, value: float, tmp_path: Path
) -> None:
    Rehearsal(series=GPUS, folder=tmp_path).gives(_asked(board("fleet"), title), {"{}": value}, at_minutes=5)


def test_the_energy_of_a_fleet_is_that_of_the_time_range(tmp_path: Path) -> None:
    expression = f"round({_asked(board('fleet'), 'Energy of all GPUs')})"
    Rehearsal(series=GPUS, folder=tmp_path).gives(expression, {"{}": 3 * 6000 * 60}, at_minutes=60)


@pytest.mark.parametrize(
    ("dashboard", "title"),
    [
        *((board("what-needs-me-now"), title) for title in ("Alerts: critical", "GPUs responding", "Throttled GPUs")),
        *((board("fleet"), panel.title) for panel in board("fleet").panels if panel.kind == "stat"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_where_nothing_is_watched_a_number_is_absent_and_not_nought(
    dashboard: Board, title: str, tmp_path: Path
) -> None:
    Rehearsal(series={"other": "1x9"}, folder=tmp_path).gives(_asked(dashboard, title), {}, at_minutes=5)


def test_where_rules_are_read_no_alert_is_nought(tmp_path: Path) -> None:
    expression = _asked(board("what-needs-me-now"), "Alerts: critical")
    Rehearsal(series={"other": "1x9"}, folder=tmp_path).gives_by_rules(expression, {"{}": 0.0}, at_minutes=5)


# One run.


@pytest.mark.parametrize(
    ("title", "worst"),
    [("Time with any kernel: the 8 least busy GPUs", range(8)), ("Power: the 8 GPUs that draw most", range(12, 20))],
)
def test_of_a_runs_gpus_the_worst_eight_are_drawn(title: str, worst: range, tmp_path: Path) -> None:
    series: dict[str, str] = {}
    for gpu in range(20):
        series |= shown(RANK_GPU, "1x9", gpu=str(gpu), slot="0", rank=str(gpu), run="a", slice="")
        series |= shown(GPU_UTILIZATION, f"{gpu / 100}x9", gpu=str(gpu)) | shown(
            GPU_POWER_WATTS, f"{gpu}x9", gpu=str(gpu)
        )
    expression = f"count by (gpu) ({_asked(board('one-run'), title, 'gpu')})"
    Rehearsal(series=series, folder=tmp_path).gives(
        expression, {f'{{gpu="{gpu}"}}': 1.0 for gpu in worst}, at_minutes=5
    )
