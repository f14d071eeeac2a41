"""Errors that drivers report are counted, whenever they come."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pynvml
import pytest

from collectors.catalogue import gpu_errors as errors
from collectors.nvml.events import EventWatch
from collectors.nvml.library import Nvml, NVMLError

XID, DOUBLE_BIT = 0x8, 0x2


class FakeEvents:
    """NVML's event sets, of GPUs that are named by letters."""

    def __init__(self, *, kinds: int = XID | DOUBLE_BIT, refusing: str = "", has_events: bool = True) -> None:
        self.happening: queue.Queue[Any] = queue.Queue()
        self.sets: list[list[str]] = []
        self.waits = 0
        self.refusing = refusing
        self._kinds = kinds
        self._has_events = has_events

    @property
    def nvml(self) -> Nvml:
        return cast(Nvml, self)

    def happen(self, gpu: str, kind: int, data: int = 0) -> None:
        self.happening.put(SimpleNamespace(device=gpu, eventType=kind, eventData=data))

    def nvmlEventSetCreate(self) -> list[str]:  # noqa: N802  # NVML's own names.
        if not self._has_events:
            raise NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        self.sets.append([])
        return self.sets[-1]

    def nvmlEventSetFree(self, events: list[str]) -> None:  # noqa: N802
        events.clear()

    def nvmlDeviceGetSupportedEventTypes(self, handle: str) -> int:  # noqa: N802
        if handle == self.refusing:
            raise NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return self._kinds | 0x4

    def nvmlDeviceRegisterEvents(self, handle: str, kinds: int, events: list[str]) -> None:  # noqa: N802
        assert kinds == self._kinds, "a change of P-state is no error"
        events.append(handle)

    def nvmlEventSetWait_v2(self, events: list[str], timeout_ms: int) -> Any:  # noqa: N802
        self.waits += 1
        try:
            event = self.happening.get(timeout=0.005)
        except queue.Empty:
            raise NVMLError(pynvml.NVML_ERROR_TIMEOUT) from None
        if isinstance(event, Exception):
            raise event
        return event


@contextmanager
def _watching(fake: FakeEvents, gpus: str = "ab") -> Iterator[EventWatch]:
    watch = EventWatch(
        fake.nvml, {gpu: gpu for gpu in gpus}, now_s=lambda: 1.5e9, pause=lambda ending, _: ending.wait(0.001)
    )
    try:
        yield watch
    finally:
        watch.close()


def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.001)


def test_events_are_counted_by_kind_and_xids_by_number_with_their_last_time() -> None:
    fake = FakeEvents()
    for _ in range(3):
        fake.happen("b", XID, 31)
    fake.happen("b", XID, 79)
    fake.happen("a", DOUBLE_BIT)
    with _watching(fake) as watch:
        wanted = [
            errors.GPU_EVENTS.at(0, gpu="a", event="xid"),
            errors.GPU_EVENTS.at(1, gpu="a", event="double_bit_ecc"),
            errors.GPU_EVENTS.at(4, gpu="b", event="xid"),
            errors.GPU_EVENT_TIME.at(1.5e9, gpu="b", event="xid"),
            errors.GPU_XIDS.at(3, gpu="b", xid="31"),
            errors.GPU_XIDS.at(1, gpu="b", xid="79"),
            errors.GPU_XID_TIME.at(1.5e9, gpu="b", xid="79"),
        ]
        _until(lambda: all(sample in watch.samples() for sample in wanted))


def test_a_kind_that_a_gpu_can_report_begins_at_nought_so_that_its_first_event_is_a_growth() -> None:
    with _watching(FakeEvents(kinds=XID), "a") as watch:
        assert watch.samples() == [errors.GPU_EVENTS.at(0, gpu="a", event="xid")]


def test_a_gpu_that_reports_nothing_is_said_and_the_others_are_heard() -> None:
    fake = FakeEvents(refusing="a")
    fake.happen("b", XID, 31)
    with _watching(fake) as watch:
        _until(lambda: errors.GPU_XIDS.at(1, gpu="b", xid="31") in watch.samples())
        assert watch.absent == ["GPU a: its driver reports no events (Not Supported); its XIDs are not counted"]


def test_after_a_gpu_is_lost_the_others_are_listened_to_anew() -> None:
    fake = FakeEvents()
    with _watching(fake) as watch:
        fake.happen("a", XID, 79)
        _until(lambda: errors.GPU_XIDS.at(1, gpu="a", xid="79") in watch.samples())
        fake.refusing = "a"
        fake.happening.put(NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST))
        fake.happen("b", XID, 31)
        _until(lambda: errors.GPU_XIDS.at(1, gpu="b", xid="31") in watch.samples())
        assert fake.sets[0] == []
        assert fake.sets[1] == ["b"]
        assert errors.GPU_XIDS.at(1, gpu="a", xid="79") in watch.samples()


def test_a_wait_that_fails_otherwise_is_tried_again() -> None:
    fake = FakeEvents()
    fake.happening.put(NVMLError(pynvml.NVML_ERROR_UNKNOWN))
    fake.happen("a", XID, 13)
    with _watching(fake) as watch:
        _until(lambda: errors.GPU_XIDS.at(1, gpu="a", xid="13") in watch.samples())


def test_a_node_whose_driver_has_no_events_is_said_and_has_no_thread() -> None:
    fake = FakeEvents(has_events=False)
    with _watching(fake) as watch:
        assert watch.samples() == []
        assert len(watch.absent) == 1
    assert fake.waits == 0


def test_listening_ends_with_the_watch() -> None:
    fake = FakeEvents()
    with _watching(fake):
        _until(lambda: fake.waits > 1)
    waits = fake.waits
    time.sleep(0.02)
    assert fake.waits == waits
    assert fake.sets == [[]]


@pytest.mark.parametrize("kind", [0x4, 0x10, 0x80])
def test_a_change_of_state_is_no_error(kind: int) -> None:
    fake = FakeEvents()
    fake.happen("a", kind)
    fake.happen("a", XID, 13)
    with _watching(fake, "a") as watch:
        _until(lambda: errors.GPU_XIDS.at(1, gpu="a", xid="13") in watch.samples())
        counted = sum(sample.value for sample in watch.samples() if sample.metric == errors.GPU_EVENTS.name)
    assert counted == 1
