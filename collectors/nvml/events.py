"""Errors that the driver reports by itself (XIDs, ECC and their like), counted by a thread that does nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from collectors.catalogue import gpu_errors as errors
from collectors.metric import Sample
from collectors.nvml.library import Nvml, NVMLError, key_of, says_lost, says_nothing_yet

XID = 0x8
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
"""What is an error; changes of state, clock and power source are not. Source: nvml.h, nvmlEventType*."""
_WAIT_MS = 500
"""How long one wait lasts, and so how long the end of the thread may take; an event ends it at once."""
_PAUSE_S = 1.0
"""Between waits that fail at once, so that a broken driver costs no CPU."""


class EventWatch:
    """Listens from its making until `close`, so that what happens between two polls is counted.

    gpus: handles by label. absent: GPUs that report nothing, with the reason.
    now_s: the time that a sample bears, in seconds since 1970. pause: waits, unless told to end.
    """

    def __init__(
        self,
        nvml: Nvml,
        gpus: Mapping[str, Any],
        *,
        now_s: Callable[[], float] = time.time,
        pause: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        self.absent: list[str] = []
        self._nvml = nvml
        self._now_s, self._pause = now_s, pause
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = {}
        self._times: dict[tuple[str, str], float] = {}
        self._xid_counts: dict[tuple[str, str], int] = {}
        self._xid_times: dict[tuple[str, str], float] = {}
        self._labels: dict[Hashable, str] = {}
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._gpus = gpus
        self._events = self._register()
        if self._labels:
            self._thread = threading.Thread(target=self._listen, name="nvml-events", daemon=True)
            self._thread.start()

    def samples(self) -> list[Sample]:
        """Counts since the making, and last times; a kind that a GPU can report begins at 0."""
        with self._lock:
            return [
                *(errors.GPU_EVENTS.at(count, gpu=gpu, event=kind) for (gpu, kind), count in self._counts.items()),
                *(errors.GPU_EVENT_TIME.at(at_s, gpu=gpu, event=kind) for (gpu, kind), at_s in self._times.items()),
                *(errors.GPU_XIDS.at(count, gpu=gpu, xid=xid) for (gpu, xid), count in self._xid_counts.items()),
                *(errors.GPU_XID_TIME.at(at_s, gpu=gpu, xid=xid) for (gpu, xid), at_s in self._xid_times.items()),
            ]

    def close(self) -> None:
        """Stop listening; a driver that holds the thread longer than two waits is left behind."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(2 * _WAIT_MS / 1e3)

    def _register(self) -> Any:
        try:
            events = self._nvml.nvmlEventSetCreate()
        except NVMLError as error:
            self._say(f"NVML reports no events ({error}); XIDs are counted on no GPU of this node")
            return None
        for gpu, handle in self._gpus.items():
            try:
                kinds = self._nvml.nvmlDeviceGetSupportedEventTypes(handle) & sum(_KINDS)
                self._nvml.nvmlDeviceRegisterEvents(handle, kinds, events)
            except NVMLError as error:
                self._say(f"GPU {gpu}: its driver reports no events ({error}); its XIDs are not counted")
                continue
            self._labels[key_of(handle)] = gpu
            with self._lock:
                for kind in (name for bit, name in _KINDS.items() if kinds & bit):
                    self._counts.setdefault((gpu, kind), 0)
        return events

    def _listen(self) -> None:
        while not self._ending.is_set():
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, _WAIT_MS)
            except NVMLError as error:
                if not says_nothing_yet(error):
                    self._pause(self._ending, _PAUSE_S)
                if says_lost(error):  # One GPU that is gone spoils the set of all.
                    self._nvml.nvmlEventSetFree(self._events)
                    self._events = self._register()
                if self._events is None:
                    return
                continue
            self._count(event)
        self._nvml.nvmlEventSetFree(self._events)

    def _say(self, reason: str) -> None:
        if reason not in self.absent:
            self.absent.append(reason)

    def _count(self, event: Any) -> None:
        gpu = self._labels.get(key_of(event.device))
        kind = _KINDS.get(event.eventType)
        if gpu is None or kind is None:
            return
        at_s = self._now_s()
        with self._lock:
            self._counts[gpu, kind] = self._counts.get((gpu, kind), 0) + 1
            self._times[gpu, kind] = at_s
            if event.eventType == XID:
                xid = str(event.eventData)
                self._xid_counts[gpu, xid] = self._xid_counts.get((gpu, xid), 0) + 1
                self._xid_times[gpu, xid] = at_s
