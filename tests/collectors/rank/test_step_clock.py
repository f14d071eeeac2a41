"""Step clocks against clocks and events whose truth is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from collectors.rank.step_clock import DeviceClock, HostClock, StepClock, StepTimes, make_clock


class FakeTime:
    """A clock that goes on only when told; `FakeDevice` has one of its own."""

    def __init__(self) -> None:
        self.now_ns = 1_000

    def __call__(self) -> int:
        return self.now_ns

    def pass_s(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


class FakeDevice:
    """A queue of work: the host adds to it at once, the device passes it when it is told to."""

    def __init__(self) -> None:
        self.queued_s = 0.0
        self.passed_s = 0.0
        self.waits = 0

    def work(self, seconds: float) -> None:
        self.queued_s += seconds

    def catch_up(self) -> None:
        self.passed_s = self.queued_s


class FakeEvent:
    """A mark in the queue of a `FakeDevice`."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self._at_s: float | None = None

    def record(self) -> None:
        self._at_s = self._device.queued_s

    def query(self) -> bool:
        assert self._at_s is not None
        return self._device.passed_s >= self._at_s

    def synchronize(self) -> None:
        self._device.waits += 1
        self._device.catch_up()

    def elapsed_time(self, end_event: FakeEvent) -> float:
        assert self.query()
        assert end_event.query()
        assert self._at_s is not None
        assert end_event._at_s is not None
        return (end_event._at_s - self._at_s) * 1e3


class FakeRunningDevice:
    """A device that works on its queue while the host goes on: both share one time, which the host makes pass."""

    def __init__(self, now: FakeTime) -> None:
        self._now = now
        self._free_ns = 0

    @property
    def reached_ns(self) -> int:
        """When what is queued by now is done."""
        return max(self._free_ns, self._now())

    def work(self, seconds: float) -> None:
        self._free_ns = self.reached_ns + round(seconds * 1e9)


class FakeRunningEvent:
    """A mark in the queue of a `FakeRunningDevice`; elapsed times are the device's."""

    def __init__(self, device: FakeRunningDevice, now: FakeTime) -> None:
        self._device = device
        self._now = now
        self._at_ns: int | None = None

    def record(self) -> None:
        self._at_ns = self._device.reached_ns

    def query(self) -> bool:
        assert self._at_ns is not None
        return self._now() >= self._at_ns

    def synchronize(self) -> None:
        assert self._at_ns is not None
        self._now.now_ns = max(self._now(), self._at_ns)

    def elapsed_time(self, end_event: FakeRunningEvent) -> float:
        assert self._at_ns is not None
        assert end_event._at_ns is not None
        return (end_event._at_ns - self._at_ns) / 1e6


def run_step(clock: StepClock, wait: Callable[[float], None], work: Callable[[float], None], loss: float) -> None:
    """Data 1 s, two microbatches with forward 2 s and backward 3 s, optimizer 4 s, 5 s between phases."""
    with clock.phase("data"):
        wait(1)
    for _ in range(2):
        with clock.phase("forward"):
            work(2)
        with clock.phase("backward"):
            work(3)
    work(5)
    with clock.phase("optimizer"):
        work(4)
    clock.end_step(torch.tensor(loss))


def assert_times(
    times: StepTimes,
    step_s: float,
    phases_s: dict[str, float],
    loss: float | None,
    data_wait_s: float | None = None,
) -> None:
    assert times.data_wait_s == (None if data_wait_s is None else pytest.approx(data_wait_s))
    assert times.step_s == pytest.approx(step_s)
    assert times.phases_s == pytest.approx(phases_s)
    assert times.loss == loss


PHASES_S = {"data": 1.0, "forward": 4.0, "backward": 6.0, "optimizer": 4.0}


def test_host_steps_follow_each_other_without_a_gap() -> None:
    now = FakeTime()
    clock = HostClock(now)
    clock.start()
    run_step(clock, now.pass_s, now.pass_s, loss=2.5)
    now.pass_s(7)
    run_step(clock, now.pass_s, now.pass_s, loss=2.25)
    first, second = clock.finished()
    assert_times(first, 20, PHASES_S, 2.5)
    assert_times(second, 27, PHASES_S, 2.25)
    assert clock.finished() == []
    assert clock.drain() == []


def test_a_pause_before_start_belongs_to_no_step() -> None:
    now = FakeTime()
    clock = HostClock(now)
    clock.start()
    now.pass_s(100)
    clock.start()
    now.pass_s(1)
    clock.end_step()
    (times,) = clock.drain()
    assert_times(times, 1, {}, None)


def make_device_clock() -> tuple[DeviceClock, FakeDevice, FakeTime]:
    device, now = FakeDevice(), FakeTime()
    return DeviceClock(new_event=lambda: FakeEvent(device), now_ns=now), device, now


def test_phases_of_a_device_are_by_its_clock_and_the_wait_for_data_is_the_hosts_too() -> None:
    clock, device, now = make_device_clock()
    clock.start()
    run_step(clock, now.pass_s, device.work, loss=2.5)
    device.catch_up()
    (times,) = clock.finished()
    assert_times(times, 19, PHASES_S | {"data": 0}, 2.5, data_wait_s=1)


def running_steps(loader_s: float, device_s: float) -> list[StepTimes]:
    """Four steps whose loader takes the host so long, and whose forward and optimizer take the device so long."""
    now = FakeTime()
    device = FakeRunningDevice(now)
    clock = DeviceClock(new_event=lambda: FakeRunningEvent(device, now), now_ns=now)
    clock.start()
    for _ in range(4):
        with clock.phase("data"):
            now.pass_s(loader_s)
        for phase, share in (("forward", 0.75), ("optimizer", 0.25)):
            with clock.phase(phase):
                now.pass_s(0.001)
                device.work(share * device_s)
        clock.end_step()
    return clock.drain()


def test_phases_add_up_to_at_most_the_step_though_the_host_runs_ahead() -> None:
    first, *others = running_steps(loader_s=0.020, device_s=0.050)
    assert len(others) == 3
    for times in (first, *others):
        assert sum(times.phases_s.values()) <= times.step_s + 1e-9
        assert times.data_wait_s == pytest.approx(0.020)
    assert first.phases_s["data"] == pytest.approx(0.020)
    for times in others:
        assert times.phases_s["data"] == 0
        assert times.step_s == pytest.approx(0.050)


def test_a_device_waits_for_data_as_long_as_it_has_no_work() -> None:
    *_, last = running_steps(loader_s=0.080, device_s=0.050)
    # It works from 81 ms to 131 ms of the host's 82, and waits for the batch that is there at 162 ms.
    assert last.step_s == pytest.approx(0.082)
    assert last.phases_s["data"] == pytest.approx(0.031)
    assert sum(last.phases_s.values()) <= last.step_s + 1e-9
    assert last.data_wait_s == pytest.approx(0.080)


def test_device_steps_are_known_when_the_device_has_passed_them_in_order_and_once() -> None:
    clock, device, now = make_device_clock()
    clock.start()
    run_step(clock, now.pass_s, device.work, loss=3.0)
    assert clock.finished() == []
    device.passed_s = 19.0
    run_step(clock, now.pass_s, device.work, loss=2.0)
    run_step(clock, now.pass_s, device.work, loss=1.0)
    assert [times.loss for times in clock.finished()] == [3.0]
    assert device.waits == 0
    assert [times.loss for times in clock.drain()] == [2.0, 1.0]
    assert device.waits == 1
    assert clock.drain() == []


def test_device_steps_follow_each_other_without_a_gap() -> None:
    clock, device, now = make_device_clock()
    clock.start()
    run_step(clock, now.pass_s, device.work, loss=2.0)
    device.work(7)
    run_step(clock, now.pass_s, device.work, loss=2.0)
    assert [times.step_s for times in clock.drain()] == pytest.approx([19.0, 26.0])


def test_the_norm_of_a_gradient_is_read_with_the_loss_and_without_another_wait() -> None:
    clock, device, _ = make_device_clock()
    clock.start()
    for norm in (4.0, 8.0):
        device.work(1)
        clock.end_step(torch.tensor(2.0), torch.tensor(norm))
    assert device.waits == 0
    assert [times.gradient_norm for times in clock.drain()] == [4.0, 8.0]
    assert device.waits == 1


def test_the_host_reads_the_norm_at_the_end_of_its_step() -> None:
    clock = HostClock(FakeTime())
    clock.start()
    clock.end_step(torch.tensor(2.0), torch.tensor(4.0))
    clock.end_step(torch.tensor(2.0))
    assert [times.gradient_norm for times in clock.finished()] == [4.0, None]


def test_a_step_without_loss_has_none() -> None:
    clock, device, _ = make_device_clock()
    clock.start()
    device.work(1)
    clock.end_step(None)
    (times,) = clock.drain()
    assert_times(times, 1, {}, None, data_wait_s=0)


def test_the_cpu_is_measured_by_the_hosts_clock() -> None:
    assert isinstance(make_clock(torch.device("cpu")), HostClock)


@pytest.mark.gpu
def test_cuda_events_measure_queued_work() -> None:
    device = torch.device("cuda")
    clock = make_clock(device)
    weight = torch.randn(4096, 4096, device=device)
    clock.start()
    for _ in range(3):
        with clock.phase("forward"):
            product = weight @ weight
        clock.end_step(product.sum())
    steps = clock.drain()
    assert len(steps) == 3
    for times in steps:
        assert 0 < sum(times.phases_s.values()) <= times.step_s
        assert times.loss is not None
