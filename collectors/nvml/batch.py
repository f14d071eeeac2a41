"""All fields of a GPU, asked with one call, each with the cost that the driver tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pynvml import NVML_ERROR_NOT_SUPPORTED, NVML_SUCCESS

from collectors.metric import Sample
from collectors.nvml.fields import Field
from collectors.nvml.library import Nvml, NVMLError
from collectors.nvml.pcie import WholeCounter
from collectors.nvml.standing import Standings

_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Which member of the value holds it, by valueType. Source: nvml.h, nvmlValueType_t."""


class FieldBatch:
    """The fields of one GPU. Those that it does not have are asked for once."""

    def __init__(self, nvml: Nvml, handle: Any, gpu: str, fields: Sequence[Field], standings: Standings) -> None:
        self._nvml, self._handle, self._gpu = nvml, handle, gpu
        self._fields = list(fields)
        self._standings = standings
        self._whole = {field: WholeCounter() for field in fields if field.is_wrapping}

    def read(self, *, is_slow: bool, expected: Mapping[str, float]) -> tuple[list[Sample], list[Sample]]:
        """The fields that change often, and the slow ones, which are empty unless asked for.

        expected: by how many bytes each direction of PCIe has grown since the last call, where that is known.

        Raises:
            GpuLost: the GPU is gone.
        """
        asked = [field for field in self._fields if is_slow or not field.is_slow]
        if not asked:
            return [], []
        try:
            values = self._nvml.nvmlDeviceGetFieldValues(self._handle, [(one.number, one.scope) for one in asked])
        except NVMLError as error:
            if not self._standings.refused("fields in one call", error):
                self._fields.clear()
            return [], []
        quick: list[Sample] = []
        slow: list[Sample] = []
        for field, value in zip(asked, values, strict=True):
            sample = self._sample(field, value, expected)
            if sample is not None:
                (slow if field.is_slow else quick).append(sample)
        return quick, slow

    def _sample(self, field: Field, value: Any, expected: Mapping[str, float]) -> Sample | None:
        code = value.nvmlReturn
        if code == NVML_SUCCESS and value.valueType >= len(_MEMBERS):  # A type of tomorrow's driver.
            code = NVML_ERROR_NOT_SUPPORTED
        if code != NVML_SUCCESS:
            if not self._standings.refused(field.name, NVMLError(code)):
                self._fields.remove(field)
            return None
        self._standings.answered(field.name, value.latencyUsec / 1e6)
        raw = raw_of(value)
        if field in self._whole:
            raw = self._whole[field].advance(int(raw), expected.get(field.labels["direction"]))
        return field.sample(self._gpu, raw)


def raw_of(value: Any) -> float:
    """The number that a field's value holds, in NVML's own unit."""
    raw: float = getattr(value.value, _MEMBERS[value.valueType])
    return raw
