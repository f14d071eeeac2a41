"""Errors that a GPU's driver reports are counted, whenever they come."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pynvml
import pytest

from collectors.metrics import gpu_health as gpu_health_metrics
from collectors.nvml.events import EventWatch
from collectors.nvml.inventory import NO_INSTANCE
from collectors.nvml.library import RETRY_S, Nvml, NVMLError

XID, DOUBLE_BIT = 0x8, 0x2
LONG_S = 30.0


class FakeEvents:
    """NVML's event sets, of GPUs whose handles are their indices."""

    def __init__(self, *, kinds: int = XID | DOUBLE_BIT, has_events: bool = True) -> None:
        self.happening: dict[int, queue.Queue[Any]] = {index: queue.Queue() for index in range(2)}
        self.sets: list[list[int]] = []
        self.waits = 0
        self.refusing: int | None = None
        self.code = pynvml.NVML_ERROR_NOT_SUPPORTED
        self._kinds = kinds
        self._has_events = has_events

    @property
    def nvml(self) -> Nvml:
        return cast(Nvml, self)

    def happen(self, gpu: int, kind: int, data: int = 0, *, instances: tuple[int, int] = (NO_INSTANCE,) * 2) -> None:
        gpu_instance, compute_instance = instances
        self.happening[gpu].put(
            SimpleNamespace(
                device=gpu,
                eventType=kind,
                eventData=data,
                gpuInstanceId=gpu_instance,
                computeInstanceId=compute_instance,
            )
        )

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802  # NVML's own names.
        return index

    def nvmlEventSetCreate(self) -> list[int]:  # noqa: N802
        if not self._has_events:
            raise NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        self.sets.append([])
        return self.sets[-1]

    def nvmlEventSetFree(self, events: list[int]) -> None:  # noqa: N802
        events.clear()

    def nvmlDeviceGetSupportedEventTypes(self, handle: int) -> int:  # noqa: N802
        if handle == self.refusing:
            raise NVMLError(self.code)
        return self._kinds | 0x4

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: list[int]) -> None:  # noqa: N802
        assert kinds == self._kinds, "a change of P-state is no error"
        events.append(handle)

    def nvmlEventSetWait_v2(self, events: list[int], timeout_ms: int) -> Any:  # noqa: N802
        self.waits += 1
        (gpu,) = events
        try:
            event = self.happening[gpu].get(timeout=0.005)
        except queue.Empty:
            raise NVMLError(pynvml.NVML_ERROR_TIMEOUT) from None
        if isinstance(event, Exception):
            raise event
        return event


@contextmanager
def _watching(fake: FakeEvents, index: int = 0, pauses: list[float] | None = None) -> Iterator[EventWatch]:
    def pause(ending: threading.Event, seconds: float) -> None:
        (pauses if pauses is not None else []).append(seconds)
        ending.wait(0.001)

    watch = EventWatch(fake.nvml, index, now_s=lambda: 1.5e9, pause=pause)
    watch.start()
    watch.await_begun(LONG_S)
    try:
        yield watch
    finally:
        assert watch.close()


def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.001)


def test_events_are_counted_by_kind_and_xids_by_number_with_their_last_time() -> None:
    fake = FakeEvents()
    for _ in range(3):
        fake.happen(1, XID, 31)
    fake.happen(1, XID, 79)
    with _watching(fake, 1) as watch:
        wanted = [
            gpu_health_metrics.GPU_EVENTS.at(0, gpu="1", event="double_bit_ecc"),
            gpu_health_metrics.GPU_EVENTS.at(4, gpu="1", event="xid"),
            gpu_health_metrics.GPU_EVENT_TIME.at(1.5e9, gpu="1", event="xid"),
            gpu_health_metrics.GPU_XIDS.at(3, gpu="1", slice="", xid="31"),
            gpu_health_metrics.GPU_XIDS.at(1, gpu="1", slice="", xid="79"),
            gpu_health_metrics.GPU_XID_TIME.at(1.5e9, gpu="1", slice="", xid="79"),
        ]
        _until(lambda: all(sample in watch.samples() for sample in wanted))


def test_an_xid_whose_number_cannot_be_counts_as_an_event_without_it_and_is_said() -> None:
    fake = FakeEvents()
    fake.happen(0, XID, 2**64 - 1)
    fake.happen(0, XID, 2**32 - 1)
    with _watching(fake) as watch:
        _until(lambda: gpu_health_metrics.GPU_EVENTS.at(2, gpu="0", event="xid") in watch.samples())
        assert not [sample for sample in watch.samples() if sample.metric == gpu_health_metrics.GPU_XIDS.name]
        _until(lambda: watch.implausible == 2)
        assert watch.doubt == "GPU 0: XID 18446744073709551615 is implausible; it is counted without its number"


def test_an_xid_is_that_of_the_slice_to_which_the_driver_puts_it_down() -> None:
    fake = FakeEvents()
    fake.happen(0, XID, 94, instances=(2, 1))
    fake.happen(0, XID, 94, instances=(2, NO_INSTANCE))
    fake.happen(0, XID, 94)
    with _watching(fake) as watch:
        _until(lambda: gpu_health_metrics.GPU_EVENTS.at(3, gpu="0", event="xid") in watch.samples())
        xids = [sample for sample in watch.samples() if sample.metric == gpu_health_metrics.GPU_XIDS.name]
    counted = {sample.labels["slice"]: sample.value for sample in xids}
    assert counted == {"2/1": 1, "2": 1, "": 1}


def test_a_kind_that_the_gpu_can_report_begins_at_nought_so_that_its_first_event_is_a_growth() -> None:
    with _watching(FakeEvents(kinds=XID)) as watch:
        assert watch.samples() == [gpu_health_metrics.GPU_EVENTS.at(0, gpu="0", event="xid")]


def test_a_gpu_that_reports_nothing_is_said_and_tried_no_more() -> None:
    fake, pauses = FakeEvents(), list[float]()
    fake.refusing = 0
    with _watching(fake, pauses=pauses) as watch:
        assert watch.reason == "GPU 0: the driver reports no events (Not Supported); XIDs are not counted"
        assert watch.samples() == []
    assert pauses == []


def test_what_is_queued_of_a_gpu_outlasts_the_loss_of_another() -> None:
    fake = FakeEvents()
    with _watching(fake, 0) as lost, _watching(fake, 1) as other:
        fake.refusing, fake.code = 0, pynvml.NVML_ERROR_GPU_IS_LOST
        fake.happening[0].put(NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST))
        _until(lambda: lost.reason is not None)
        fake.happen(1, XID, 31)
        _until(lambda: gpu_health_metrics.GPU_XIDS.at(1, gpu="1", slice="", xid="31") in other.samples())
        assert fake.sets[1] == [1], "the other's set was never freed"
        assert other.reason is None


def test_a_gpu_that_was_lost_is_tried_again_and_its_counts_go_on() -> None:
    fake, pauses = FakeEvents(), list[float]()
    with _watching(fake, pauses=pauses) as watch:
        fake.happen(0, XID, 79)
        _until(lambda: gpu_health_metrics.GPU_XIDS.at(1, gpu="0", slice="", xid="79") in watch.samples())
        fake.refusing, fake.code = 0, pynvml.NVML_ERROR_GPU_IS_LOST
        fake.happening[0].put(NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST))
        _until(lambda: watch.reason is not None)
        assert fake.sets[0] == []
        fake.refusing = None
        fake.happen(0, XID, 79)
        _until(lambda: gpu_health_metrics.GPU_XIDS.at(2, gpu="0", slice="", xid="79") in watch.samples())
        assert watch.reason is None
    assert RETRY_S in pauses


def test_a_wait_that_fails_otherwise_is_tried_again_with_the_same_set() -> None:
    fake = FakeEvents()
    fake.happening[0].put(NVMLError(pynvml.NVML_ERROR_UNKNOWN))
    fake.happen(0, XID, 13)
    with _watching(fake) as watch:
        _until(lambda: gpu_health_metrics.GPU_XIDS.at(1, gpu="0", slice="", xid="13") in watch.samples())
        assert fake.sets == [[0]]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, "Not Supported"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"),
    ],
)
def test_a_driver_that_never_tells_its_events_has_none_counted_and_not_a_count_of_none(code: int, words: str) -> None:
    fake = FakeEvents()
    fake.happening[0].put(NVMLError(code))
    with _watching(fake) as watch:
        _until(lambda: fake.sets == [[]])
        assert watch.reason == f"GPU 0: the driver delivers no events ({words}); XIDs are not counted"
        assert watch.samples() == []
    assert fake.waits == 1


def test_events_that_may_have_been_missed_are_said_until_the_driver_is_heard_again() -> None:
    fake = FakeEvents()
    told: list[str | None] = []

    def pause(ending: threading.Event, seconds: float) -> None:
        told.append(watch.reason)

    watch = EventWatch(fake.nvml, 0, now_s=lambda: 1.5e9, pause=pause)
    fake.happening[0].put(NVMLError(pynvml.NVML_ERROR_UNKNOWN))
    watch.start()
    _until(lambda: bool(told) and watch.reason is None)
    assert watch.close()
    assert told == ["GPU 0: the driver sometimes fails to deliver events (Unknown Error); some may be missed"]


def test_a_driver_without_events_is_said_and_not_waited_for() -> None:
    fake = FakeEvents(has_events=False)
    with _watching(fake) as watch:
        assert watch.reason == "GPU 0: the driver reports no events (Function Not Found); XIDs are not counted"
        assert watch.samples() == []
    assert fake.waits == 0


def test_listening_ends_with_the_watch() -> None:
    fake = FakeEvents()
    with _watching(fake):
        _until(lambda: fake.waits > 1)
    waits = fake.waits
    time.sleep(0.02)
    assert fake.waits == waits
    assert fake.sets == [[]]


def test_a_watch_that_ended_can_listen_again_and_one_that_listens_does_not_begin_twice() -> None:
    fake = FakeEvents()
    with _watching(fake) as watch:
        watch.start()
        assert len(fake.sets) == 1
        assert watch.close()
        watch.start()
        fake.happen(0, XID, 13)
        _until(lambda: gpu_health_metrics.GPU_XIDS.at(1, gpu="0", slice="", xid="13") in watch.samples())
        assert fake.sets == [[], [0]]


def test_a_watch_that_is_told_to_go_on_as_it_ends_listens_again() -> None:
    class FakeChange(FakeEvents):
        """Told to end while it waits, and to begin as it gives its set back."""

        def nvmlEventSetWait_v2(self, events: list[int], timeout_ms: int) -> Any:  # noqa: N802
            if not self.waits:
                watch.end()
            return super().nvmlEventSetWait_v2(events, timeout_ms)

        def nvmlEventSetFree(self, events: list[int]) -> None:  # noqa: N802
            if len(self.sets) == 1:
                watch.start()
            super().nvmlEventSetFree(events)

    fake = FakeChange()
    watch = EventWatch(fake.nvml, 0, now_s=lambda: 1.5e9)
    watch.start()
    _until(lambda: fake.sets == [[], [0]])
    assert watch.close()


def test_waiting_is_no_cost() -> None:
    fake = FakeEvents()
    with _watching(fake) as watch:
        _until(lambda: fake.waits > 1)
        assert set(watch.timed.calls) == {
            "nvmlDeviceGetHandleByIndex",
            "nvmlEventSetCreate",
            "nvmlDeviceGetSupportedEventTypes",
            "nvmlDeviceRegisterEvents",
        }


@pytest.mark.parametrize("kind", [0x4, 0x10, 0x80])
def test_a_change_of_state_is_no_error(kind: int) -> None:
    fake = FakeEvents()
    fake.happen(0, kind)
    fake.happen(0, XID, 13)
    with _watching(fake) as watch:
        _until(lambda: gpu_health_metrics.GPU_XIDS.at(1, gpu="0", slice="", xid="13") in watch.samples())
        counted = sum(sample.value for sample in watch.samples() if sample.metric == gpu_health_metrics.GPU_EVENTS.name)
    assert counted == 1
