"""What the dashboards' expressions give for series whose answer was made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.metrics.agent import AGENT_BEATS
from collectors.metrics.gpu import (
    GPU_CLOCK_HELD_RATIO,
    GPU_CLOCK_HELD_SECONDS,
    GPU_INSTANCE,
    GPU_INSTANCE_MEMORY_BYTES,
    GPU_INSTANCE_MEMORY_USED_BYTES,
    GPU_MEMORY_FREE_BYTES,
    GPU_MEMORY_RESERVED_BYTES,
    GPU_MEMORY_USED_BYTES,
    GPU_POWER_LIMIT_WATTS,
    GPU_POWER_WATTS,
    GPU_STATE,
    GPU_TEMPERATURE_MARGIN_CELSIUS,
    RANK_GPU,
)
from collectors.metrics.gpu_health import GPU_RECOVERY
from collectors.metrics.host import HOST_CPU_SECONDS, HOST_MEMORY_BYTES
from tests.dashboards.boards import Board, board
from tests.stack.alerts.rehearsal import SCRAPED, Rehearsal, shown
from tests.support.grafana_expressions import with_choices

pytestmark = pytest.mark.stack

WHERE = ", ".join(f'{name}="{value}"' for name, value in sorted(SCRAPED.items()))
ANSWERING = shown(GPU_STATE, "1x10", gpu="0", state="answering")
RANK_3 = shown(RANK_GPU, "1x10", rank="3", slot="0", run="8f2c", gpu="0")
RANK_4 = shown(RANK_GPU, "1x10", rank="4", slot="0", run="8f2c", gpu="0")
POWER = shown(GPU_POWER_WATTS, "450x10", gpu="0")
LIMITS = {
    **shown(GPU_POWER_LIMIT_WATTS.alone(limit="current"), "600x10", gpu="0"),
    **shown(GPU_POWER_LIMIT_WATTS.alone(limit="default"), "700x10", gpu="0"),
    **shown(GPU_POWER_LIMIT_WATTS.alone(limit="maximum"), "900x10", gpu="0"),
}


def _of(dashboard: Board, title: str, number: int = 0, **chosen: str) -> str:
    """An expression of a panel, the first if no number is given, with these choices."""
    panel = dashboard.panel(title)
    return with_choices(panel.queries[number].expression, **chosen)


POWER_PANEL, MEMORY_PANEL = (
    "Power, as a share of the limit in force",
    "Memory in use, as a share of what processes can allocate",
)
POWER_SHARE = _of(board("one-gpu"), POWER_PANEL)
MEMORY_SHARE, SLICES = (_of(board("one-gpu"), MEMORY_PANEL, number) for number in (0, 1))
STATE = _of(board("one-gpu"), "Lost, late, or waiting for a repair")


def test_power_is_shown_of_the_limit_in_force_and_bears_the_rank(tmp_path: Path) -> None:
    Rehearsal(series={**POWER, **LIMITS, **ANSWERING, **RANK_3}, folder=tmp_path).gives(
        POWER_SHARE,
        {f'{{gpu="0", {WHERE}, work="8f2c rank 3"}}': 0.75},
        at_minutes=5,
    )


@pytest.mark.parametrize("ranks", [{}, {**RANK_3, **RANK_4}], ids=["no rank", "two ranks"])
def test_a_gpu_of_no_rank_or_of_several_bears_none(ranks: dict[str, str], tmp_path: Path) -> None:
    Rehearsal(series={**POWER, **LIMITS, **ANSWERING, **ranks}, folder=tmp_path).gives(
        POWER_SHARE, {f'{{gpu="0", {WHERE}}}': 0.75}, at_minutes=5
    )


def test_a_rank_of_another_node_is_not_borne(tmp_path: Path) -> None:
    elsewhere = shown(RANK_GPU, "1x10", rank="3", slot="0", run="8f2c", gpu="0", instance="node2:9464")
    Rehearsal(series={**POWER, **LIMITS, **ANSWERING, **elsewhere}, folder=tmp_path).gives(
        POWER_SHARE, {f'{{gpu="0", {WHERE}}}': 0.75}, at_minutes=5
    )


def test_memory_that_the_driver_keeps_is_no_part_of_what_is_full(tmp_path: Path) -> None:
    series = {
        **ANSWERING,
        **shown(GPU_MEMORY_USED_BYTES, "75x10", gpu="0"),
        **shown(GPU_MEMORY_FREE_BYTES, "25x10", gpu="0"),
        **shown(GPU_MEMORY_RESERVED_BYTES, "50x10", gpu="0"),
    }
    Rehearsal(series=series, folder=tmp_path).gives(
        MEMORY_SHARE,
        {f'{{gpu="0", {WHERE}}}': 0.75},
        at_minutes=5,
    )


def test_memory_of_a_slice_bears_the_rank_on_it_and_no_other(tmp_path: Path) -> None:
    series = {
        name: values
        for part, rank in (("1/0", "3"), ("2/0", "4"), ("3/0", None))
        for name, values in (
            *shown(GPU_INSTANCE_MEMORY_USED_BYTES, "30x10", gpu="7", slice=part).items(),
            *shown(GPU_INSTANCE_MEMORY_BYTES, "40x10", gpu="7", slice=part).items(),
            *shown(GPU_INSTANCE, "1x10", gpu="7", slice=part).items(),
            *(shown(RANK_GPU, "1x10", rank=rank, slot="0", run="8f2c", gpu="7", slice=part) if rank else {}).items(),
        )
    }
    Rehearsal(series=series, folder=tmp_path).gives(
        f"sum by (slice, work) ({SLICES})",
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
        f"sum by (gpu, state) ({STATE})",
        {'{gpu="0", state="answering"}': 0.0, '{gpu="6", state="lost"}': 1.0},
        at_minutes=5,
    )


def _eight(lost: str) -> dict[str, str]:
    """Eight GPUs that answer, but for one."""
    return {
        name: values
        for number in map(str, range(8))
        for name, values in shown(
            GPU_STATE, "1x10", gpu=number, state="lost" if number == lost else "answering"
        ).items()
    }


def test_of_eight_gpus_seven_answer_where_one_is_lost(tmp_path: Path) -> None:
    rehearsal = Rehearsal(series={**_eight(lost="6"), **shown(AGENT_BEATS, "0+60x10")}, folder=tmp_path)
    rehearsal.gives(_of(board("fleet"), "GPUs responding"), {"{}": 7.0}, at_minutes=5)
    rehearsal.gives(_of(board("fleet"), "GPUs not responding"), {"{}": 1.0}, at_minutes=5)


def test_a_gpu_that_its_agent_shows_no_more_does_not_answer(tmp_path: Path) -> None:
    series = {
        **shown(GPU_STATE, "1x10", gpu="0", state="answering"),
        **shown(GPU_STATE, "1x2 stale", gpu="1", state="answering"),
        **shown(AGENT_BEATS, "0+60x10"),
    }
    rehearsal = Rehearsal(series=series, folder=tmp_path)
    rehearsal.gives(_of(board("fleet"), "GPUs responding"), {"{}": 1.0}, at_minutes=5)
    rehearsal.gives(_of(board("fleet"), "GPUs not responding"), {"{}": 1.0}, at_minutes=5)


def test_a_fleet_without_gpus_counts_none_as_well_or_sick(tmp_path: Path) -> None:
    rehearsal = Rehearsal(series=shown(AGENT_BEATS, "0+60x10"), folder=tmp_path)
    rehearsal.gives(_of(board("fleet"), "GPUs responding"), {}, at_minutes=5)
    rehearsal.gives(_of(board("fleet"), "GPUs not responding"), {}, at_minutes=5)


HELD_BACK, ASKING, LOST = 1, 2, 5
"""States of GPUs, as the boards number them."""


@pytest.mark.parametrize(
    "states", [_of(board("one-gpu"), "Health of each GPU"), _of(board("fleet"), "Unhealthy GPUs now")]
)
def test_a_gpu_has_the_worst_state_of_all_that_is_true_of_it(states: str, tmp_path: Path) -> None:
    series = {
        **shown(GPU_STATE, "1x10", gpu="0", state="answering"),
        **shown(GPU_STATE, "1x10", gpu="1", state="answering"),
        **shown(GPU_STATE, "1x10", gpu="2", state="lost"),
        **shown(GPU_RECOVERY, "1x10", gpu="1", action="gpu_reset"),
        **shown(GPU_RECOVERY, "1x10", gpu="2", action="gpu_reset"),
        # Half of the time, which is more than heat may take.
        **shown(GPU_CLOCK_HELD_SECONDS, "0+30x10", gpu="1", reason="software_thermal"),
        **shown(GPU_CLOCK_HELD_SECONDS, "0+30x10", gpu="0", reason="software_thermal"),
    }
    worst = {"0": HELD_BACK, "1": ASKING, "2": LOST}
    Rehearsal(series=series, folder=tmp_path).gives(
        states,
        {f'{{gpu="{number}", {WHERE}}}': float(state) for number, state in worst.items()},
        at_minutes=8,
    )


def test_a_gpu_of_a_fleet_is_held_back_by_its_counter_where_it_has_one_and_while_it_is_shown(tmp_path: Path) -> None:
    reason = "software_thermal"
    series = {
        **shown(GPU_STATE, "1x10", gpu="0", state="answering"),
        **shown(GPU_CLOCK_HELD_SECONDS, "0x10", gpu="0", reason=reason),
        **shown(GPU_CLOCK_HELD_RATIO, "1x10", gpu="0", reason=reason),
        **shown(GPU_STATE, "1x10", gpu="1", state="answering"),
        **shown(GPU_CLOCK_HELD_RATIO, "1x10", gpu="1", reason=reason),
        **shown(GPU_STATE, "1x6 stale", gpu="2", state="answering"),
        **shown(GPU_CLOCK_HELD_SECONDS, "0+60x6 stale", gpu="2", reason=reason),
    }
    Rehearsal(series=series, folder=tmp_path).gives(_of(board("fleet"), "Throttled GPUs"), {"{}": 1.0}, at_minutes=8)


def test_a_gpu_at_the_factorys_power_limit_is_sound(tmp_path: Path) -> None:
    def of(current: int) -> dict[str, str]:
        return {
            **shown(GPU_STATE, "1x10", gpu="0", state="answering"),
            **shown(GPU_CLOCK_HELD_SECONDS, "0+60x10", gpu="0", reason="software_power_cap"),
            **shown(GPU_POWER_LIMIT_WATTS.alone(limit="current"), f"{current}x10", gpu="0"),
            **shown(GPU_POWER_LIMIT_WATTS.alone(limit="default"), "700x10", gpu="0"),
        }

    for current, state in ((700, 0), (600, HELD_BACK)):
        Rehearsal(series=of(current), folder=tmp_path).gives(
            _of(board("one-gpu"), "Health of each GPU"), {f'{{gpu="0", {WHERE}}}': float(state)}, at_minutes=8
        )


def test_of_many_series_the_worst_ten_are_kept_and_over_the_whole_range(tmp_path: Path) -> None:
    cool = {name: values for gpu in range(2, 11) for name, values in _margin("40x20", gpu).items()}
    series = {**cool, **_margin("1 1 1 1 1 80x9", 0), **_margin("80 80 80 80 80 10x9", 1)}
    chosen = _of(board("fleet"), "Hottest GPUs: degrees below the throttling temperature")
    Rehearsal(series=series, folder=tmp_path).gives(
        f"min by (gpu) ({chosen})",
        {'{gpu="1"}': 10.0, **{f'{{gpu="{gpu}"}}': 40.0 for gpu in range(2, 11)}},
        at_minutes=10,
    )


def _margin(values: str, gpu: int) -> dict[str, str]:
    return shown(GPU_TEMPERATURE_MARGIN_CELSIUS, values, gpu=str(gpu))


@pytest.mark.parametrize(
    ("dashboard", "title"),
    [
        (board("one-gpu"), "Power, as a share of the limit in force"),
        (board("one-host"), "Memory available without swapping, as a share of all memory"),
    ],
    ids=["one GPU", "one host"],
)
def test_a_chosen_node_shows_no_other_nodes_series(dashboard: Board, title: str, tmp_path: Path) -> None:
    series = {
        name: values
        for node, scale in (("node1:9464", 1), ("node2:9464", 2))
        for one in (
            shown(GPU_STATE, "1x10", gpu="0", state="answering", instance=node),
            shown(GPU_POWER_WATTS, f"{scale * 350}x10", gpu="0", instance=node),
            shown(GPU_POWER_LIMIT_WATTS.alone(limit="current"), "700x10", gpu="0", instance=node),
            shown(HOST_MEMORY_BYTES.alone(kind="available"), f"{scale * 50}x10", instance=node),
            shown(HOST_MEMORY_BYTES.alone(kind="total"), "100x10", instance=node),
        )
        for name, values in one.items()
    }
    Rehearsal(series=series, folder=tmp_path).gives(
        f"sum by (instance) ({_of(dashboard, title, node='node1:9464')})",
        {'{instance="node1:9464"}': 0.5},
        at_minutes=5,
    )


def test_modes_of_the_cpu_are_shares_of_all_cpus_time(tmp_path: Path) -> None:
    series = {**shown(HOST_CPU_SECONDS, "0+60x10", mode="user"), **shown(HOST_CPU_SECONDS, "0+180x10", mode="idle")}
    expression = _of(board("one-host"), "CPU time by mode, as a share of all CPUs").replace("[1m]", "[5m]")
    Rehearsal(series=series, folder=tmp_path).gives(expression, {f'{{{WHERE}, mode="user"}}': 0.25}, at_minutes=8)
