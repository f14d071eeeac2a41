"""Action clocks against clocks and events whose truth is known."""

from __future__ import annotations

from pathlib import Path

import torch

from collectors.action_clock import ActionClock, DeviceActionClock, HostActionClock, host_clock_name, make_action_clock
from collectors.sample_log import TimedAction
from tests.collectors.test_step_clock import FakeDevice, FakeEvent, FakeTime
from workloads.laws.schedules import Action

FORWARD = Action(kind="forward", stage=1, microbatch=0)
BACKWARD = Action(kind="backward", stage=1, microbatch=0)


def test_an_action_has_its_own_time_and_no_wait_before_it() -> None:
    now = FakeTime()
    clock = HostActionClock(now)
    begun_ns = clock.begin_step()
    now.pass_s(3)
    with clock.mark(FORWARD):
        now.pass_s(2)
    now.pass_s(5)
    with clock.mark(BACKWARD):
        now.pass_s(4)
    assert begun_ns == 1_000
    assert clock.end_step() == [
        TimedAction("forward", 1, 0, 3_000_000_000, 5_000_000_000),
        TimedAction("backward", 1, 0, 10_000_000_000, 14_000_000_000),
    ]


def test_each_step_counts_from_its_own_beginning() -> None:
    now = FakeTime()
    clock = HostActionClock(now)
    for _ in range(2):
        clock.begin_step()
        with clock.mark(FORWARD):
            now.pass_s(2)
        assert clock.end_step() == [TimedAction("forward", 1, 0, 0, 2_000_000_000)]


def _device_clock() -> tuple[DeviceActionClock, FakeDevice]:
    device = FakeDevice()
    return DeviceActionClock(new_event=lambda: FakeEvent(device), now_ns=FakeTime()), device


def test_on_a_device_an_action_has_the_time_of_the_device() -> None:
    clock, device = _device_clock()
    device.work(7)
    clock.begin_step()
    device.work(3)
    with clock.mark(FORWARD):
        device.work(2)
    assert clock.end_step() == [TimedAction("forward", 1, 0, 3_000_000_000, 5_000_000_000)]


def test_on_a_device_nothing_waits_before_the_steps_end() -> None:
    clock, device = _device_clock()
    clock.begin_step()
    for action in (FORWARD, BACKWARD):
        with clock.mark(action):
            device.work(2)
    assert device.waits == 0
    clock.end_step()
    assert device.waits > 0


def test_a_host_is_timed_by_its_own_clock() -> None:
    clock: ActionClock = make_action_clock(torch.device("cpu"))
    clock.begin_step()
    with clock.mark(FORWARD):
        pass
    (timed,) = clock.end_step()
    assert 0 <= timed.start_ns <= timed.end_ns


def test_a_clock_is_called_after_the_boot_that_it_counts_from(tmp_path: Path) -> None:
    names = []
    for boot in ("one", "another"):
        (tmp_path / boot).write_text(f"{boot}\n")
        names.append(host_clock_name(tmp_path / boot))
    assert names[0] == host_clock_name(tmp_path / "one")
    assert names[0] != names[1]


def test_a_clock_that_nobody_can_tell_has_no_name(tmp_path: Path) -> None:
    assert host_clock_name(tmp_path / "missing") is None
