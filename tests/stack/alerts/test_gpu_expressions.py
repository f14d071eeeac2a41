"""What the dashboards' expressions give for series whose answer was made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.metrics.gpu import (
    GPU_INSTANCE_MEMORY_BYTES,
    GPU_INSTANCE_MEMORY_USED_BYTES,
    GPU_MEMORY_FREE_BYTES,
    GPU_MEMORY_RESERVED_BYTES,
    GPU_MEMORY_USED_BYTES,
    GPU_POWER_LIMIT_WATTS,
    GPU_POWER_WATTS,
    GPU_STATE,
    RANK_GPU,
)
from collectors.metrics.host import HOST_CPU_SECONDS
from collectors.metrics.metric import Metric
from dashboards.boards import gpu_health, host_load
from dashboards.model import Dashboard
from tests.stack.alerts.rehearsal import SCRAPED, Rehearsal, shown
from tests.support.grafana_expressions import with_every_choice

pytestmark = pytest.mark.stack

WHERE = ", ".join(f'{name}="{value}"' for name, value in sorted(SCRAPED.items()))
RANK_3 = shown(RANK_GPU, "1x10", rank="3", slot="0", run="8f2c", gpu="0")
RANK_4 = shown(RANK_GPU, "1x10", rank="4", slot="0", run="8f2c", gpu="0")
POWER = shown(GPU_POWER_WATTS, "450x10", gpu="0")
LIMITS = {
    **shown(GPU_POWER_LIMIT_WATTS, "600x10", gpu="0", limit="current"),
    **shown(GPU_POWER_LIMIT_WATTS, "700x10", gpu="0", limit="default"),
    **shown(GPU_POWER_LIMIT_WATTS, "900x10", gpu="0", limit="maximum"),
}


def _asked(dashboard: Dashboard, metric: Metric) -> str:
    """The dashboard's first expression for a metric."""
    queries = (query for panel in dashboard.panels for query in panel.queries)
    return with_every_choice(next(query.expression for query in queries if query.metric == metric))


def test_power_is_shown_of_the_limit_in_force_and_bears_the_rank(tmp_path: Path) -> None:
    Rehearsal(series={**POWER, **LIMITS, **RANK_3}, folder=tmp_path).gives(
        _asked(gpu_health.DASHBOARD, GPU_POWER_WATTS),
        {f'{{gpu="0", {WHERE}, run="8f2c", rank="3", work="8f2c rank 3"}}': 0.75},
        at_minutes=5,
    )


@pytest.mark.parametrize("ranks", [{}, {**RANK_3, **RANK_4}], ids=["no rank", "two ranks"])
def test_a_gpu_of_no_rank_or_of_several_bears_none(ranks: dict[str, str], tmp_path: Path) -> None:
    Rehearsal(series={**POWER, **LIMITS, **ranks}, folder=tmp_path).gives(
        _asked(gpu_health.DASHBOARD, GPU_POWER_WATTS), {f'{{gpu="0", {WHERE}}}': 0.75}, at_minutes=5
    )


def test_a_rank_of_another_node_is_not_borne(tmp_path: Path) -> None:
    elsewhere = shown(RANK_GPU, "1x10", rank="3", slot="0", run="8f2c", gpu="0", instance="node2:9464")
    Rehearsal(series={**POWER, **LIMITS, **elsewhere}, folder=tmp_path).gives(
        _asked(gpu_health.DASHBOARD, GPU_POWER_WATTS), {f'{{gpu="0", {WHERE}}}': 0.75}, at_minutes=5
    )


def test_memory_that_the_driver_keeps_is_no_part_of_what_is_full(tmp_path: Path) -> None:
    series = {
        **shown(GPU_MEMORY_USED_BYTES, "75x10", gpu="0"),
        **shown(GPU_MEMORY_FREE_BYTES, "25x10", gpu="0"),
        **shown(GPU_MEMORY_RESERVED_BYTES, "50x10", gpu="0"),
    }
    Rehearsal(series=series, folder=tmp_path).gives(
        _asked(gpu_health.DASHBOARD, GPU_MEMORY_USED_BYTES), {f'{{gpu="0", {WHERE}}}': 0.75}, at_minutes=5
    )


def test_memory_of_a_slice_bears_the_rank_on_it_and_no_other(tmp_path: Path) -> None:
    series = {
        name: values
        for part, rank in (("1/0", "3"), ("2/0", "4"), ("3/0", None))
        for name, values in (
            *shown(GPU_INSTANCE_MEMORY_USED_BYTES, "30x10", gpu="7", slice=part).items(),
            *shown(GPU_INSTANCE_MEMORY_BYTES, "40x10", gpu="7", slice=part).items(),
            *(shown(RANK_GPU, "1x10", rank=rank, slot="0", run="8f2c", gpu="7", slice=part) if rank else {}).items(),
        )
    }
    Rehearsal(series=series, folder=tmp_path).gives(
        f"sum by (slice, work) ({_asked(gpu_health.DASHBOARD, GPU_INSTANCE_MEMORY_USED_BYTES)})",
        {
            '{slice="1/0", work="8f2c rank 3"}': 0.75,
            '{slice="2/0", work="8f2c rank 4"}': 0.75,
            '{slice="3/0"}': 0.75,
        },
        at_minutes=5,
    )


def test_a_gpu_that_answers_is_zero_and_one_that_is_lost_is_one(tmp_path: Path) -> None:
    series = {
        **shown(GPU_STATE, "1x10", gpu="0", state="answering"),
        **shown(GPU_STATE, "1x10", gpu="6", state="lost"),
    }
    Rehearsal(series=series, folder=tmp_path).gives(
        f"sum by (gpu, state) ({_asked(gpu_health.DASHBOARD, GPU_STATE)})",
        {'{gpu="0", state="answering"}': 0.0, '{gpu="6", state="lost"}': 1.0},
        at_minutes=5,
    )


def test_modes_of_the_cpu_are_shares_of_all_cpus_time(tmp_path: Path) -> None:
    series = {**shown(HOST_CPU_SECONDS, "0+60x10", mode="user"), **shown(HOST_CPU_SECONDS, "0+180x10", mode="idle")}
    expression = _asked(host_load.DASHBOARD, HOST_CPU_SECONDS).replace("[1m]", "[5m]")
    Rehearsal(series=series, folder=tmp_path).gives(
        expression, {f'{{{WHERE}, mode="user"}}': 0.25, f'{{{WHERE}, mode="idle"}}': 0.75}, at_minutes=8
    )
