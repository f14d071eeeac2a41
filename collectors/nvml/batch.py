"""All fields of a GPU, asked with one call, each with the cost that the driver tells."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pynvml import NVML_ERROR_NOT_SUPPORTED, NVML_SUCCESS

from collectors.metric import Sample
from collectors.nvml.fields import Field
from collectors.nvml.library import Nvml, NVMLError
from collectors.nvml.pcie import WholeCounter
from collectors.nvml.profile import MONITORS, pcie_rate
from collectors.nvml.standing import Standings

_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Which member of the value holds it, by valueType. Source: nvml.h, nvmlValueType_t."""
_MAY_HAVE_WRAPPED = "its counter wraps every 4 GiB, and the link may carry more between two readings"


class FieldBatch:
    """The fields of one GPU. Those that it does not have are asked for once."""

    def __init__(
        self,
        nvml: Nvml,
        handle: Any,
        gpu: str,
        fields: Sequence[Field],
        standings: Standings,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._nvml, self._handle, self._gpu = nvml, handle, gpu
        self._fields = list(fields)
        self._standings = standings
        self._clock_ns = clock_ns
        self._whole = {field: WholeCounter() for field in fields if field.is_wrapping}
        self._begun_ns: int | None = None

    def read(
        self, *, is_slow: bool, rates: Mapping[str, float], link: float | None
    ) -> tuple[list[Sample], list[Sample]]:
        """The fields that change often, and the slow ones, which are empty unless asked for.

        rates: bytes per second in each direction of PCIe since the last call, where that is known. link: what PCIe
        can carry in one direction, in bytes per second.

        Raises:
            GpuLost: the GPU is gone.
        """
        asked = [field for field in self._fields if is_slow or not field.is_slow]
        if not asked:
            return [], []
        begun_ns = self._clock_ns()
        try:
            values = self._nvml.nvmlDeviceGetFieldValues(self._handle, [(one.number, one.scope) for one in asked])
        except NVMLError as error:
            if not self._standings.refused("fields in one call", error):
                self._fields.clear()
            self._whole = {field: WholeCounter() for field in self._whole}
            return [], []
        since_ns = begun_ns if self._begun_ns is None else self._begun_ns
        self._begun_ns = begun_ns
        expected = {direction: rate * (begun_ns - since_ns) / 1e9 for direction, rate in rates.items()}
        # From before the last call until after this one: within them each counter was read at a time of its own.
        most = None if link is None else link * (self._clock_ns() - since_ns) / 1e9
        quick: list[Sample] = []
        slow: list[Sample] = []
        for field, value in zip(asked, values, strict=True):
            sample = self._sample(field, value, expected, most)
            if sample is not None:
                (slow if field.is_slow else quick).append(sample)
        return quick, slow

    def _sample(self, field: Field, value: Any, expected: Mapping[str, float], most: float | None) -> Sample | None:
        code = value.nvmlReturn
        if code == NVML_SUCCESS and value.valueType >= len(_MEMBERS):  # A type of tomorrow's driver.
            code = NVML_ERROR_NOT_SUPPORTED
        if code != NVML_SUCCESS:
            if not self._standings.refused(field.name, NVMLError(code)):
                self._fields.remove(field)
            if field in self._whole:  # What it grew by meanwhile is told by nothing.
                self._whole[field] = WholeCounter()
            return None
        self._standings.answered(field.name, value.latencyUsec / 1e6)
        raw = raw_of(value)
        if field not in self._whole:
            return field.sample(self._gpu, raw)
        direction = field.labels["direction"]
        whole = self._whole[field].advance(int(raw), expected=expected.get(direction), most=most)
        if whole is None and not all(map(self._standings.is_asked, (MONITORS, pcie_rate(direction)))):
            # Where monitors are there, a gap in what they tell is said of them.
            self._standings.doubted(field.name, _MAY_HAVE_WRAPPED)
        return None if whole is None else field.sample(self._gpu, whole)


def raw_of(value: Any) -> float:
    """The number that a field's value holds, in NVML's own unit."""
    raw: float = getattr(value.value, _MEMBERS[value.valueType])
    return raw
