"""Room on file systems, and the clock: the recorded node's, and this very host's beside what others say of it."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from collectors.host.collector import HostCollector
from collectors.host.procfs import ClockState
from collectors.metrics import host
from tests.collectors.host.nodes import of, read, recorded


def test_room_is_what_statvfs_says_of_the_root_folder() -> None:
    room = of(HostCollector().read(), host.HOST_FILESYSTEM_BYTES)
    assert room["/", "total"] == psutil.disk_usage("/").total
    assert 0 <= room["/", "available"] <= room["/", "total"]


def test_folders_on_one_file_system_count_once(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    room = of(HostCollector(recorded(tmp_path), folders=(Path("/runs"),)).read(), host.HOST_FILESYSTEM_BYTES)
    assert {folder for folder, _ in room} == {"/"}


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="no second file system to look at")
def test_a_folder_on_another_file_system_has_its_own_room() -> None:
    room = of(HostCollector(folders=(Path("/dev/shm"),)).read(), host.HOST_FILESYSTEM_BYTES)
    assert room["/dev/shm", "total"] == shutil.disk_usage("/dev/shm").total


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="no second file system to look at")
def test_a_folder_that_is_not_there_yet_is_where_its_parent_is() -> None:
    collector = HostCollector(folders=(Path("/dev/shm/not/there/yet"),))
    room = of(collector.read(), host.HOST_FILESYSTEM_BYTES)
    assert room["/dev/shm/not/there/yet", "total"] == shutil.disk_usage("/dev/shm").total


def test_a_folder_that_cannot_be_looked_at_is_said_and_the_others_are_watched(tmp_path: Path) -> None:
    collector = HostCollector(recorded(tmp_path), folders=(Path("/" + "x" * 300),))
    assert {folder for folder, _ in of(collector.read(), host.HOST_FILESYSTEM_BYTES)} == {"/"}
    assert collector.absent == (f"host: the file system of /{'x' * 300}: File name too long; sometimes left out",)


def test_the_clock_has_its_offset_its_error_and_its_keeper(tmp_path: Path) -> None:
    samples = read(recorded(tmp_path))
    assert of(samples, host.HOST_CLOCK_OFFSET_SECONDS) == {(): -0.0015}
    assert of(samples, host.HOST_CLOCK_ERROR_SECONDS) == {(): 0.0025}
    assert of(samples, host.HOST_CLOCK_KEPT) == {(): 1}


def test_an_offset_is_in_microseconds_where_the_kernel_says_nothing_else(tmp_path: Path) -> None:
    state = ClockState(offset=60_000, max_error_us=16_000_000, status=0x0040)
    samples = read(replace(recorded(tmp_path), clock=lambda: state))
    assert of(samples, host.HOST_CLOCK_OFFSET_SECONDS) == {(): 0.06}
    assert of(samples, host.HOST_CLOCK_ERROR_SECONDS) == {(): 16}
    assert of(samples, host.HOST_CLOCK_KEPT) == {(): 0}


def test_a_kernel_that_refuses_leaves_the_clock_out_with_its_reason(tmp_path: Path) -> None:
    def refuse() -> ClockState:
        raise OSError(errno.EPERM, "Operation not permitted", "adjtimex")

    collector = HostCollector(replace(recorded(tmp_path), clock=refuse))
    assert of(collector.read(), host.HOST_CLOCK_KEPT) == {}
    assert collector.absent == ("host: clock: adjtimex: Operation not permitted; left out from here on",)


def test_this_kernel_tells_a_state_that_is_one_of_a_clock() -> None:
    samples = HostCollector().read()
    kept = of(samples, host.HOST_CLOCK_KEPT)
    if not kept:
        pytest.skip("the kernel does not tell its clock here")
    assert kept[()] in (0, 1)
    assert abs(of(samples, host.HOST_CLOCK_OFFSET_SECONDS)[()]) <= 0.5  # The kernel corrects no more than this.
    assert of(samples, host.HOST_CLOCK_ERROR_SECONDS)[()] >= 0
