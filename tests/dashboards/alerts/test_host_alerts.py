"""The alerts on hosts: a disk that becomes full, a clock that is off, and one that nothing keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.metrics import host
from tests.dashboards.alerts.drill import SCRAPED, Drill, Series, alert, joined, shown

pytestmark = pytest.mark.stack

NODE = SCRAPED["instance"]


@pytest.fixture
def drill(tmp_path: Path) -> Drill:
    return Drill(group="hosts", folder=tmp_path)


def _disk(available: str, folder: str = "/") -> Series:
    return joined(
        shown(host.HOST_FILESYSTEM_BYTES.alone(kind="total"), "1000x60", folder=folder),
        shown(host.HOST_FILESYSTEM_BYTES.alone(kind="available"), available, folder=folder),
    )


def test_a_disk_is_told_while_it_fills_and_as_full_and_no_more_when_there_is_room(drill: Drill) -> None:
    filling = alert("HostDiskFilling", instance=NODE, folder="/")
    full = alert("HostDiskFull", instance=NODE, folder="/")
    drill.fires(
        joined(_disk("100x9 99x10 19x10 500x20"), _disk("101x60", "/runs")),
        {9: [], 13: [], 16: [filling], 24: [full], 35: []},
    )


def test_a_disk_that_nobody_shows_any_more_is_told_no_more(drill: Drill) -> None:
    drill.fires(_disk("10x20 stale"), {10: [alert("HostDiskFull", instance=NODE, folder="/")], 22: []})


def test_an_empty_file_system_is_none_that_is_full(drill: Drill) -> None:
    series = joined(
        shown(host.HOST_FILESYSTEM_BYTES.alone(kind="total"), "0x30", folder="/"),
        shown(host.HOST_FILESYSTEM_BYTES.alone(kind="available"), "0x30", folder="/"),
    )
    drill.fires(series, {20: []})


def test_it_says_how_much_is_left(drill: Drill) -> None:
    drill.says(
        _disk("15x20"),
        "HostDiskFull",
        10,
        {**SCRAPED, "folder": "/"},
        summary="The file system of / at node1:9464 is full: 1.5% of free space",
        description="The file system of / at node1:9464 has 1.5% of free space, less than 2%. A trial fails"
        " when its log cannot be written. Free space now.",
    )


@pytest.mark.parametrize("sign", ["", "-"])
def test_a_clock_is_off_after_ten_minutes_and_until_it_is_right(sign: str, drill: Drill) -> None:
    off = alert("HostClockOff", instance=NODE)
    series = shown(host.HOST_CLOCK_OFFSET_SECONDS, f"{sign}0.049x9 {sign}0.06x20 0x10")
    drill.fires(series, {9: [], 18: [], 21: [off], 32: []})


def test_a_clock_that_nothing_keeps_is_told_and_one_that_is_set_is_not(drill: Drill) -> None:
    series = joined(
        shown(host.HOST_CLOCK_KEPT, "1x10 0x20 1x10"), shown(host.HOST_CLOCK_ERROR_SECONDS, "0.01x10 16x20 0.01x10")
    )
    drill.fires(series, {12: [], 25: [alert("HostClockNotKept", instance=NODE)], 33: []})


def test_it_says_by_how_much_a_clock_may_be_off(drill: Drill) -> None:
    drill.says(
        joined(shown(host.HOST_CLOCK_KEPT, "0x40"), shown(host.HOST_CLOCK_ERROR_SECONDS, "16x40")),
        "HostClockNotKept",
        20,
        SCRAPED,
        summary="The clock of node1:9464 is not synchronized: it may be off by 16s",
        description="For 10 minutes nothing has corrected the clock of node1:9464, which may be off by 16s or"
        " more. Start chronyd, ntpd or ptp4l with phc2sys, and check that it reaches its source.",
    )


def test_a_clock_that_has_lost_its_source_for_a_while_is_none_that_nothing_keeps(drill: Drill) -> None:
    series = joined(shown(host.HOST_CLOCK_KEPT, "0x40"), shown(host.HOST_CLOCK_ERROR_SECONDS, "15.9x40"))
    drill.fires(series, {30: []})
