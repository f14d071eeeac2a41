"""The alerts on GPUs, as Prometheus evaluates them minute by minute."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from collectors.metrics.agent import AGENT_BEATS, AGENT_COLLECTOR
from collectors.metrics.gpu import (
    GPU_CLOCK_HELD_RATIO,
    GPU_CLOCK_HELD_SECONDS,
    GPU_POWER_LIMIT_WATTS,
    GPU_STATE,
    RANK_GPU,
)
from collectors.metrics.gpu_health import GPU_ECC_VOLATILE_ERRORS, GPU_MEMORY_REPAIR, GPU_RECOVERY, GPU_XID_TIME
from tests.stack.alerts.alertmanager import SHIPPED
from tests.stack.alerts.rehearsal import SCRAPED, Rehearsal, shown

pytestmark = [pytest.mark.stack, pytest.mark.slow]

HEALTHY = {
    **shown(AGENT_BEATS, "0+60x60"),
    **shown(GPU_STATE, "1x60", gpu="0", state="answering"),
    **shown(GPU_RECOVERY, "1x60", gpu="0", action="none"),
    **shown(GPU_MEMORY_REPAIR, "0x60", gpu="0", repair="rows", state="pending"),
    **shown(GPU_ECC_VOLATILE_ERRORS, "2x60", gpu="0", kind="uncorrected"),
}
HOT = "software_thermal"
CAP = "software_power_cap"


def _node(folder: Path, *more: dict[str, str]) -> Rehearsal:
    return Rehearsal(series={name: values for part in (HEALTHY, *more) for name, values in part.items()}, folder=folder)


def _rank(rank: str = "3") -> dict[str, str]:
    return shown(RANK_GPU, "1x60", rank=rank, slot="0", run="8f2c", gpu="0")


def _held(seconds_a_minute: int, reason: str) -> dict[str, str]:
    return shown(GPU_CLOCK_HELD_SECONDS, f"0+{seconds_a_minute}x60", gpu="0", reason=reason)


def _limits(current_w: int) -> dict[str, str]:
    limits = {"current": current_w, "default": 700, "maximum": 800}
    return {
        name: values
        for limit, watts in limits.items()
        for name, values in shown(GPU_POWER_LIMIT_WATTS.alone(limit=limit), f"{watts}x60", gpu="0").items()
    }


def test_of_a_healthy_gpu_nobody_is_told(tmp_path: Path) -> None:
    _node(tmp_path, _rank(), _limits(700)).fires(at_minutes=30)


def test_a_lost_gpu_is_told_after_a_minute(tmp_path: Path) -> None:
    node = _node(tmp_path, shown(GPU_STATE, "_x10 1x20", gpu="6", state="lost"))
    node.fires(at_minutes=10)
    node.fires(("GpuLost", "6"), at_minutes=12)


def test_a_gpu_that_is_not_listed_any_more_is_lost(tmp_path: Path) -> None:
    node = _node(tmp_path, shown(GPU_STATE, "1x10 stale", gpu="6", state="answering"))
    node.fires(at_minutes=9)
    node.fires(("GpuLost", "6"), at_minutes=15)


def test_a_lost_gpu_is_told_with_the_run_and_the_rank_that_were_on_it(tmp_path: Path) -> None:
    of_run = {"run": "8f2c", "slot": "0", "slice": ""}
    _node(
        tmp_path,
        shown(GPU_STATE, "1x10 stale", gpu="6", state="answering"),
        shown(GPU_STATE, "_x10 1x20", gpu="6", state="lost"),
        shown(RANK_GPU, "1x12 stale", rank="6", gpu="6", **of_run),
        shown(RANK_GPU, "1x30", rank="7", gpu="7", **of_run),
        shown(RANK_GPU, "1x5 stale", rank="0", gpu="6", **{**of_run, "run": "older"}),
    ).says(
        "GpuLost",
        {
            "summary": "GPU 6 of node1:9464 is lost",
            "description": "GPU 6 of node1:9464 no longer responds, or has disappeared, although the node's"
            " agent responds. Programs on this GPU have failed or will fail. Last seen there:"
            " run 8f2c, ranks: 6. Next: `observatory show 8f2c`.",
        },
        at_minutes=20,
        severity="critical",
        gpu="6",
    )


@pytest.mark.parametrize("lost_after_minutes", [0, 1])
def test_a_gpu_that_is_lost_after_its_xid_holds_that_back_before_anybody_is_sent_it(
    lost_after_minutes: int, tmp_path: Path
) -> None:
    """Alertmanager waits for `group_wait` from the first alert of a group on, then sends what nothing holds back."""
    lost = 10 + lost_after_minutes
    node = _node(
        tmp_path,
        shown(GPU_XID_TIME, "_x10 600x20", gpu="6", slice="", xid="79"),
        shown(GPU_STATE, f"1x{lost} stale", gpu="6", state="answering"),
        shown(GPU_STATE, f"_x{lost} 1x20", gpu="6", state="lost"),
    )
    first = next(minute for minute in range(10, 16) if node.is_on("GpuXidOfNode", at_minutes=minute))
    (critical,) = yaml.safe_load(SHIPPED.read_text())["route"]["routes"]
    waited_s = int(critical["group_wait"].removesuffix("s"))
    assert node.is_on("GpuLost", at_minutes=first + waited_s // 60)


def test_the_only_gpu_of_a_node_is_lost_where_the_agent_answers_after_a_reboot(tmp_path: Path) -> None:
    was = shown(GPU_STATE, "1x10 stale", gpu="6", state="answering")
    beats = shown(AGENT_BEATS, "0+60x10 _x5 0+60x20")
    Rehearsal(series={**was, **beats}, folder=tmp_path).fires(("GpuLost", "6"), at_minutes=20)


def test_of_gpus_whose_collector_hangs_the_collector_alone_is_told(tmp_path: Path) -> None:
    late = shown(AGENT_COLLECTOR, "_x10 1x20", collector="nvml", state="late")
    was = shown(GPU_STATE, "1x10 stale", gpu="6", state="answering")
    node = Rehearsal(series={**was, **late, **shown(AGENT_BEATS, "0+60x30")}, folder=tmp_path)
    node.fires(("NodeCollectorStale", ""), at_minutes=20)


def test_a_node_that_never_had_a_gpu_misses_none(tmp_path: Path) -> None:
    Rehearsal(series=shown(AGENT_BEATS, "0+60x30"), folder=tmp_path).fires(at_minutes=20)


def test_of_gpus_that_vanish_with_their_agent_nobody_is_told(tmp_path: Path) -> None:
    series = {**shown(GPU_STATE, "1x10 stale", gpu="6", state="answering"), **shown(AGENT_BEATS, "0+60x10 stale")}
    Rehearsal(series=series, folder=tmp_path).fires(at_minutes=15)


def test_a_driver_that_asks_for_a_reset_is_heard(tmp_path: Path) -> None:
    _node(tmp_path, shown(GPU_RECOVERY, "1x30", gpu="5", action="gpu_reset")).fires(
        ("GpuNeedsReset", "5"), at_minutes=20
    )


def test_a_repair_that_waits_is_told_and_says_what_it_is(tmp_path: Path) -> None:
    labels = {"gpu": "5", "repair": "rows", "state": "pending"}
    _node(tmp_path, shown(GPU_MEMORY_REPAIR, "1x30", **labels)).says(
        "GpuNeedsReset",
        {
            "summary": "GPU 5 of node1:9464 needs a repair of its memory's rows (pending)",
            "description": "The driver of GPU 5 of node1:9464 reports that the repair of its memory's rows is"
            " pending. Give the GPU no new work until this is done.",
        },
        at_minutes=20,
        severity="warning",
        **labels,
    )


def test_a_driver_that_asks_for_a_reset_for_a_repair_is_heard_once(tmp_path: Path) -> None:
    asks = shown(GPU_RECOVERY, "1x30", gpu="5", action="gpu_reset")
    waits = shown(GPU_MEMORY_REPAIR, "1x30", gpu="5", repair="rows", state="pending")
    _node(tmp_path, asks, waits).gives_by_rules('count(ALERTS{alertstate="firing"})', {"{}": 1.0}, at_minutes=20)


def test_an_xid_is_told_for_an_hour(tmp_path: Path) -> None:
    node = _node(tmp_path, shown(GPU_XID_TIME, "_x10 600x200", gpu="6", slice="", xid="79"))
    node.fires(("GpuXidOfNode", "6"), at_minutes=12)
    node.fires(at_minutes=75)


@pytest.mark.parametrize("xid", ["13", "31", "43", "45", "68", "109"])
def test_an_xid_that_a_wrong_program_causes_is_none_of_the_gpus(xid: str, tmp_path: Path) -> None:
    _node(tmp_path, shown(GPU_XID_TIME, "60x60", gpu="0", slice="", xid=xid)).fires(at_minutes=12)


@pytest.mark.parametrize("xid", ["46", "48", "62", "64", "79", "95", "119", "120", "140", "143"])
def test_an_xid_after_which_nothing_works_is_critical_and_no_warning(xid: str, tmp_path: Path) -> None:
    _node(tmp_path, shown(GPU_XID_TIME, "60x60", gpu="0", slice="", xid=xid)).fires(
        ("GpuXidOfNode", "0"), at_minutes=12
    )


@pytest.mark.parametrize("xid", ["63", "74", "92", "94", "999"])
def test_an_xid_of_one_gpu_or_an_unknown_one_is_a_warning(xid: str, tmp_path: Path) -> None:
    _node(tmp_path, shown(GPU_XID_TIME, "60x60", gpu="0", slice="", xid=xid)).fires(("GpuXid", "0"), at_minutes=12)


def test_an_xid_is_named_with_its_age(tmp_path: Path) -> None:
    _node(tmp_path, shown(GPU_XID_TIME, "60x60", gpu="6", slice="", xid="79")).says(
        "GpuXidOfNode",
        {
            "summary": "GPU 6 of node1:9464 reported XID 79 11m 0s ago",
            "description": "The driver of GPU 6 of node1:9464 reported XID 79 11m 0s ago. Programs on this GPU"
            " have failed or will fail. Give the node no work until somebody has examined it.",
        },
        at_minutes=12,
        severity="critical",
        gpu="6",
        xid="79",
    )


def test_an_xid_of_a_slice_names_it(tmp_path: Path) -> None:
    _node(tmp_path, shown(GPU_XID_TIME, "60x60", gpu="6", slice="2/0", xid="94")).says(
        "GpuXid",
        {
            "summary": "GPU 6 of node1:9464 reported XID 94 11m 0s ago",
            "description": "The driver of GPU 6 of node1:9464 reported XID 94 on its slice 2/0 11m 0s ago. No"
            " program causes this XID, and it concerns only this GPU. Watch whether it returns.",
        },
        at_minutes=12,
        severity="warning",
        gpu="6",
        slice="2/0",
        xid="94",
    )


def test_a_new_uncorrected_error_is_told_and_an_old_one_is_not(tmp_path: Path) -> None:
    node = _node(tmp_path, shown(GPU_ECC_VOLATILE_ERRORS, "2x20 3x120", gpu="5", kind="uncorrected"))
    node.fires(at_minutes=20)
    node.fires(("GpuMemoryError", "5"), at_minutes=25)
    node.fires(at_minutes=85)


def test_a_corrected_error_is_told_nobody(tmp_path: Path) -> None:
    _node(tmp_path, shown(GPU_ECC_VOLATILE_ERRORS, "0+5x60", gpu="5", kind="corrected")).fires(at_minutes=30)


def test_heat_that_slows_down_a_rank_is_told(tmp_path: Path) -> None:
    _node(tmp_path, _rank(), _held(30, HOT)).fires(("GpuHot", "0"), at_minutes=30)


def test_it_says_for_how_long_what_held_back_which_rank(tmp_path: Path) -> None:
    _node(tmp_path, _rank(), _held(30, HOT)).says(
        "GpuHot",
        {
            "summary": "Heat throttles GPU 0 of node1:9464 for 50% of the time",
            "description": "For 50% of the last 10 minutes software_thermal throttled the clocks of GPU 0 of"
            " node1:9464, on which a rank computes (8f2c rank 3). All ranks wait for the slowest"
            " one. Check the cooling of this GPU, or of the rack if its neighbours are also hot.",
        },
        at_minutes=30,
        severity="warning",
        gpu="0",
        reason=HOT,
        run="8f2c",
        rank="3",
        work="8f2c rank 3",
    )


def test_heat_on_a_gpu_that_two_ranks_share_is_told_once(tmp_path: Path) -> None:
    node = _node(tmp_path, _rank("3"), _rank("4"), _held(30, HOT))
    node.gives_by_rules(
        'ALERTS{alertstate="firing"}',
        {
            'ALERTS{alertname="GpuHot", alertstate="firing", component="gpu", gpu="0",'
            f' instance="{SCRAPED["instance"]}", job="{SCRAPED["job"]}", reason="{HOT}", severity="warning"}}': 1.0
        },
        at_minutes=30,
    )


def test_heat_on_a_gpu_without_a_rank_is_told_nobody(tmp_path: Path) -> None:
    _node(tmp_path, _held(30, HOT)).fires(at_minutes=30)


def test_heat_for_a_moment_is_told_nobody(tmp_path: Path) -> None:
    _node(tmp_path, _rank(), _held(5, HOT)).fires(at_minutes=30)


def test_a_reason_without_a_counter_is_sampled(tmp_path: Path) -> None:
    _node(tmp_path, _rank(), shown(GPU_CLOCK_HELD_RATIO, "1x60", gpu="0", reason="hardware_slowdown")).fires(
        ("GpuHeldBack", "0"), at_minutes=30
    )


def test_of_a_reason_with_a_counter_the_sample_does_not_count(tmp_path: Path) -> None:
    _node(tmp_path, _rank(), _held(1, HOT), shown(GPU_CLOCK_HELD_RATIO, "1x60", gpu="0", reason=HOT)).fires(
        at_minutes=30
    )


def test_a_slowdown_that_heat_explains_is_told_as_heat_alone(tmp_path: Path) -> None:
    slowed = shown(GPU_CLOCK_HELD_RATIO, "1x60", gpu="0", reason="hardware_slowdown")
    hot = shown(GPU_CLOCK_HELD_RATIO, "1x60", gpu="0", reason="hardware_thermal")
    _node(tmp_path, _rank(), slowed, hot).fires(("GpuHot", "0"), at_minutes=30)


def test_the_power_supplys_signal_is_no_heat(tmp_path: Path) -> None:
    _node(tmp_path, _rank(), _held(30, "hardware_power_brake")).fires(("GpuHeldBack", "0"), at_minutes=30)


def test_power_at_the_factory_limit_is_as_it_should_be(tmp_path: Path) -> None:
    _node(tmp_path, _rank(), _limits(700), _held(60, CAP)).fires(at_minutes=30)


def test_power_at_a_lowered_limit_is_told(tmp_path: Path) -> None:
    _node(tmp_path, _rank(), _limits(450), _held(60, CAP)).fires(("GpuHeldBack", "0"), at_minutes=30)


def test_a_gpu_that_does_not_answer_is_told_after_five_minutes(tmp_path: Path) -> None:
    node = _node(tmp_path, shown(GPU_STATE, "_x10 1x20", gpu="4", state="late"))
    node.fires(at_minutes=14)
    node.fires(("GpuLate", "4"), at_minutes=17)


def test_a_gpu_that_the_agent_fails_to_read_is_told_as_the_agents_mistake(tmp_path: Path) -> None:
    _node(tmp_path, shown(GPU_STATE, "1x20", gpu="4", state="failed")).says(
        "GpuLate",
        {
            "summary": "The agent at node1:9464 has been unable to read GPU 4 for at least 5 minutes (failed)",
            "description": "For five minutes the agent has failed to read GPU 4 of node1:9464 because of its"
            " own bug, which `observatory doctor` names.",
        },
        at_minutes=8,
        severity="warning",
        gpu="4",
        state="failed",
    )
