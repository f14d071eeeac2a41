"""Counts errors that a GPU's driver reports as events (XIDs, ECC and similar), in a thread for each GPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from collectors.metrics import gpu_health as gpu_health_metrics
from collectors.metrics.metric import Sample
from collectors.nvml.inventory import label_of_ids
from collectors.nvml.library import (
    RETRY_S,
    Nvml,
    NVMLError,
    Timed,
    says_forbidden,
    says_lost,
    says_nothing_yet,
    says_unsupported,
)

XID = 0x8
_MOST_XID = 9999
"""Maximum plausible XID; NVIDIA's list has a few hundred."""
_KINDS = {
    0x1: "single_bit_ecc",
    0x2: "double_bit_ecc",
    XID: "xid",
    0x200: "single_bit_ecc_storm",
    0x400: "dram_retirement",
    0x800: "dram_retirement_failure",
    0x1000: "poison_not_fatal",
    0x2000: "poison_fatal",
    0x4000: "gpu_unavailable",
    0x8000: "recovery_action",
}
"""Events that are errors; changes of state, clock and power source are not. Source: nvml.h, nvmlEventType*."""
_WAIT_MS = 500
"""Timeout of a wait, and thus the longest delay before the thread ends; an event ends the wait at once."""
_PAUSE_S = 1.0
"""Pause after a failed wait, so that a broken driver costs no CPU."""


class EventWatch:
    """Listens to a GPU from `start` until `close`, so that errors between two polls are counted.

    Each GPU has its own thread and event set, so a lost GPU or a driver that hangs does not affect other GPUs' events.
    Counts survive the loss of a GPU; listening resumes when it is found again. An XID belongs to the GPU, or to the MIG
    slice that the driver names.

    index: NVML's. reason: why nothing is counted; None if all is well. implausible: number of XIDs with an impossible
    number, which count as events only. doubt: a message on the first of them. timed: cost of the calls, without waits.
    now_s: the time of a sample, in Unix seconds. pause: waits that many seconds or until the end is requested.
    """

    def __init__(
        self,
        nvml: Nvml,
        index: int,
        *,
        now_s: Callable[[], float] = time.time,
        pause: Callable[[threading.Event, float], object] = threading.Event.wait,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.reason: str | None = None
        self.implausible = 0
        self.doubt: str | None = None
        self.timed = Timed(nvml, clock_ns=clock_ns)
        self._index, self._label = index, str(index)
        self._untimed = nvml
        self._now_s, self._pause = now_s, pause
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._times: dict[str, float] = {}
        self._xid_counts: dict[tuple[str, str], int] = {}
        self._xid_times: dict[tuple[str, str], float] = {}
        self._has_tried = threading.Event()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, or let the running one continue."""
        self._ending.clear()
        if self._thread is None or not self._thread.is_alive():
            self._has_tried.clear()
            self._thread = threading.Thread(target=self._run, name=f"nvml-events{self._label}", daemon=True)
            self._thread.start()

    def await_begun(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` until the thread listens or has failed to."""
        self._has_tried.wait(max(0.0, timeout_s))

    def samples(self) -> list[Sample]:
        """Return counts since creation, and times of the last events; kinds that the GPU can report start at 0."""
        gpu = self._label
        with self._lock:
            return [
                *(gpu_health_metrics.GPU_EVENTS.at(count, gpu=gpu, event=kind) for kind, count in self._counts.items()),
                *(
                    gpu_health_metrics.GPU_EVENT_TIME.at(at_s, gpu=gpu, event=kind)
                    for kind, at_s in self._times.items()
                ),
                *(
                    gpu_health_metrics.GPU_XIDS.at(count, gpu=gpu, slice=part, xid=xid)
                    for (part, xid), count in self._xid_counts.items()
                ),
                *(
                    gpu_health_metrics.GPU_XID_TIME.at(at_s, gpu=gpu, slice=part, xid=xid)
                    for (part, xid), at_s in self._xid_times.items()
                ),
            ]

    def end(self) -> None:
        """Request the thread's end, without waiting for it."""
        self._ending.set()

    def close(self) -> bool:
        """Stop listening; return whether the thread ended. If the driver blocks it for two waits, it is abandoned."""
        self.end()
        if self._thread is None:
            return True
        self._thread.join(2 * _WAIT_MS / 1e3)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                events = self._register()
            except NVMLError as error:
                self.reason = f"GPU {self._label}: the driver reports no events ({error}); XIDs are not counted"
                self._has_tried.set()
                if says_unsupported(error) or says_forbidden(error):
                    return
                self._pause(self._ending, RETRY_S)
                continue
            self.reason = None
            self._has_tried.set()
            is_unsupported = self._listen(events)
            self._free(events)
            if is_unsupported:
                return

    def _register(self) -> Any:
        nvml = self.timed.nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(self._index)
        events = nvml.nvmlEventSetCreate()
        try:
            kinds = nvml.nvmlDeviceGetSupportedEventTypes(handle) & sum(_KINDS)
            nvml.nvmlDeviceRegisterEvents(handle, kinds, events)
        except NVMLError:
            self._free(events)
            raise
        with self._lock:
            for kind in (name for bit, name in _KINDS.items() if kinds & bit):
                self._counts.setdefault(kind, 0)
        return events

    def _listen(self, events: Any) -> bool:
        """Count events until the end is requested or the GPU is lost, after which its event set is useless.

        Return True if the driver will never deliver events.
        """
        while not self._ending.is_set():
            try:
                event = self._untimed.nvmlEventSetWait_v2(events, _WAIT_MS)
            except NVMLError as error:
                if says_nothing_yet(error):
                    self.reason = None
                elif says_lost(error):
                    self._pause(self._ending, _PAUSE_S)
                    return False
                elif says_unsupported(error) or says_forbidden(error):
                    self.reason = f"GPU {self._label}: the driver delivers no events ({error}); XIDs are not counted"
                    with self._lock:  # Kinds at 0 may have occurred.
                        self._counts = {kind: count for kind, count in self._counts.items() if count}
                    return True
                else:
                    self.reason = (
                        f"GPU {self._label}: the driver sometimes fails to deliver events ({error}); some may be missed"
                    )
                    self._pause(self._ending, _PAUSE_S)
            else:
                self.reason = None
                self._count(event)
        return False  # `start` may have been called meanwhile.

    def _free(self, events: Any) -> None:
        with suppress(NVMLError):  # A lost GPU refuses.
            self.timed.nvml.nvmlEventSetFree(events)

    def _count(self, event: Any) -> None:
        kind = _KINDS.get(event.eventType)
        if kind is None:
            return
        at_s = self._now_s()
        with self._lock:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._times[kind] = at_s
            if event.eventType == XID and not 0 <= event.eventData <= _MOST_XID:
                self.implausible += 1
                doubt = f"GPU {self._label}: XID {event.eventData} is implausible; it is counted without its number"
                self.doubt = self.doubt or doubt
            elif event.eventType == XID:
                xid = (label_of_ids(event.gpuInstanceId, event.computeInstanceId), str(event.eventData))
                self._xid_counts[xid] = self._xid_counts.get(xid, 0) + 1
                self._xid_times[xid] = at_s
