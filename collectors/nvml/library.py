"""What is asked of NVIDIA's management library, through the module `pynvml`."""

from __future__ import annotations

from typing import Any, Protocol, cast

import pynvml
from pynvml import (
    NVML_ERROR_DRIVER_NOT_LOADED,
    NVML_ERROR_FUNCTION_NOT_FOUND,
    NVML_ERROR_GPU_IS_LOST,
    NVML_ERROR_LIBRARY_NOT_FOUND,
    NVML_ERROR_NOT_SUPPORTED,
    NVML_ERROR_RESET_REQUIRED,
)

NVMLError = cast(type[Exception], pynvml.NVMLError)
"""NVML's refusal, whatever the reason."""

_NO_DRIVER = {
    NVML_ERROR_LIBRARY_NOT_FOUND: "NVML library not found",
    NVML_ERROR_DRIVER_NOT_LOADED: "its kernel module is not loaded",
}


class Nvml(Protocol):
    """The functions of `pynvml` that we call, so that a recorded NVML can take its place.

    Not nvmlDeviceGetPcieThroughput, which blocks for 20 ms per direction.
    """

    def nvmlInit(self) -> None: ...  # noqa: N802  # NVML's own names.
    def nvmlSystemGetDriverVersion(self) -> str: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...  # noqa: N802
    def nvmlDeviceGetName(self, handle: Any) -> str: ...  # noqa: N802
    def nvmlDeviceGetUUID(self, handle: Any) -> str: ...  # noqa: N802
    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int) -> Any: ...  # noqa: N802
    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetClockInfo(self, handle: Any, clock: int) -> int: ...  # noqa: N802


def installed_nvml() -> Nvml:
    """The module `pynvml` itself."""
    return cast(Nvml, pynvml)


def missing_driver(error: Exception) -> str | None:
    """What is not there where there is no NVIDIA driver, which is normal; None where there is one."""
    return _NO_DRIVER.get(_code(error))


def says_unsupported(error: Exception) -> bool:
    """This driver never answers that question for this GPU."""
    return _code(error) in {NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_FUNCTION_NOT_FOUND}


def says_lost(error: Exception) -> bool:
    """The GPU is gone until it is reset or the node is restarted."""
    return _code(error) in {NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED}


def _code(error: Exception) -> int | None:
    return getattr(error, "value", None)
