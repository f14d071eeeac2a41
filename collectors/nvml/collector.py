"""The node's GPUs as NVML sees them: all of the node, whichever of them a run uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from collectors.catalogue import gpu as catalogue
from collectors.metric import Sample
from collectors.nvml.fields import FIELDS, Field
from collectors.nvml.library import Nvml, NVMLError, installed_nvml, missing_driver, says_lost, says_unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpu:
    """label: NVML's index. info: who it is. fields: the questions that it has not said no to."""

    label: str
    handle: Any
    info: Sample
    fields: list[Field]


class NvmlCollector:
    """Opens NVML for as long as the process lives. A node without a driver has no samples and one reason.

    A GPU split by MIG is seen whole.
    """

    name = "nvml"

    def __init__(self, nvml: Nvml | None = None) -> None:
        self._nvml = installed_nvml() if nvml is None else nvml
        self._reasons: dict[str, None] = {}
        self._driver = ""
        self._gpus: list[_Gpu] = []
        self._open()

    @property
    def absent(self) -> tuple[str, ...]:
        """GPUs and fields that do not answer, each with its reason."""
        return tuple(self._reasons)

    def read(self) -> list[Sample]:
        """What each GPU answers now."""
        return [sample for gpu in tuple(self._gpus) for sample in self._read(gpu)]

    def _open(self) -> None:
        try:
            self._nvml.nvmlInit()
            self._driver = self._nvml.nvmlSystemGetDriverVersion()
            count = self._nvml.nvmlDeviceGetCount()
        except NVMLError as error:
            self._say(_no_nvml(error))
            return
        if count == 0:
            self._say(f"NVML: driver {self._driver} shows no GPU; samples of GPUs are left out of this run")
        for index in range(count):
            try:
                self._gpus.append(self._find(index))
            except NVMLError as error:
                self._say(f"GPU {index}: {error}; its samples are left out of this run")

    def _find(self, index: int) -> _Gpu:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        info = catalogue.GPU_INFO.at(
            1,
            gpu=str(index),
            uuid=self._nvml.nvmlDeviceGetUUID(handle),
            name=self._nvml.nvmlDeviceGetName(handle),
            driver=self._driver,
        )
        return _Gpu(label=str(index), handle=handle, info=info, fields=list(FIELDS))

    def _read(self, gpu: _Gpu) -> list[Sample]:
        samples = [gpu.info]
        for field in tuple(gpu.fields):
            try:
                samples += field.read(self._nvml, gpu.handle, gpu.label)
            except NVMLError as error:
                if says_lost(error):
                    self._gpus.remove(gpu)
                    self._say(f"GPU {gpu.label}: {error}; its samples end here")
                    return []
                if says_unsupported(error):
                    gpu.fields.remove(field)
                    self._say(
                        f"GPU {gpu.label}: driver {self._driver} has no {field.what};"
                        f" {field.left_out} are left out of this run"
                    )
                else:  # It may answer at the next beat.
                    self._say(
                        f"GPU {gpu.label}: no answer from its {field.what} at times ({error});"
                        f" {field.left_out} are left out then"
                    )
        return samples

    def _say(self, reason: str) -> None:
        self._reasons.setdefault(reason)


def _no_nvml(error: Exception) -> str:
    missing = missing_driver(error)
    if missing is not None:
        return f"no NVIDIA driver: {missing}"
    return f"NVML does not start: {error}; samples of GPUs are left out of this run"
