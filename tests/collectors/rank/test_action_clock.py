"""Action clocks against clocks and events whose truth is known."""

from __future__ import annotations

from pathlib import Path

import torch

from collectors.rank.action_clock import (
    ActionClock,
    CoreWait,
    DeviceActionClock,
    HostActionClock,
    host_clock_name,
    make_action_clock,
)
from collectors.sample_log import TimedAction, TimedMessage
from tests.collectors.rank.test_step_clock import FakeDevice, FakeEvent, FakeTime
from workloads.cost_models.schedules import Action

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


class FakeCoreWait(CoreWait):
    """A thread that waited as long as the test says."""

    def __init__(self, *waited_ns: int | None) -> None:
        self._left_ns = list(waited_ns)

    def waited_ns(self) -> int | None:
        """The next one."""
        return self._left_ns.pop(0)


def test_messages_and_waits_for_a_core_stand_beside_the_actions() -> None:
    now = FakeTime()
    clock = HostActionClock(now, lambda: FakeCoreWait(100, 103, 110))
    clock.begin_step()
    now.pass_s(1)
    clock.tell_message("asked", FORWARD)
    with clock.mark(FORWARD):
        now.pass_s(2)
    clock.tell_message("sent", FORWARD)
    assert clock.messages() == [
        TimedMessage("asked", "forward", 1, 0, 1_000_000_000),
        TimedMessage("sent", "forward", 1, 0, 3_000_000_000),
    ]
    assert clock.core_waits_ns() == [(3, 10)]


def test_waits_for_a_core_that_the_kernel_does_not_count_are_absent() -> None:
    clock = HostActionClock(FakeTime(), lambda: FakeCoreWait(None, None, None))
    clock.begin_step()
    with clock.mark(FORWARD):
        pass
    assert clock.core_waits_ns() is None


def test_on_a_device_nobody_knows_when_messages_travel() -> None:
    clock, _ = _device_clock()
    clock.begin_step()
    clock.tell_message("sent", FORWARD)
    assert clock.messages() is None
    assert clock.core_waits_ns() is None


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
