"""Clocks, PCIe links and free memory of the GPUs at this moment, as NVML tells of them; starts no CUDA."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

from bench.doctor.page import Entry
from bench.gpus import Gpu, Nvml, read_gpus, read_memory
from bench.notices import say
from bench.preflight import told_holders


class StateNvml(Nvml, Protocol):
    """What is asked of the module `pynvml` beyond who the GPUs are."""

    NVML_CLOCK_SM: int
    NVML_CLOCK_MEM: int

    def nvmlDeviceGetClockInfo(self, handle: Any, clock: int) -> int: ...  # noqa: N802  # NVML's own names.
    def nvmlDeviceGetMaxClockInfo(self, handle: Any, clock: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Any) -> int: ...  # noqa: N802


def installed_nvml() -> StateNvml:
    """The module `pynvml` itself."""
    import pynvml  # Only here: who hands in another module needs none.

    return cast(StateNvml, pynvml)


def hidden_gpus(nvml: StateNvml, environment: Mapping[str, str]) -> tuple[Entry, ...]:
    """Why CUDA shows fewer GPUs than the node has; nothing where it shows all."""
    found = read_gpus(nvml, environment, on_late=say)
    return () if found.hidden is None else (Entry(name="GPUs that CUDA shows", value=found.hidden.text),)


def free_memory(nvml: StateNvml, gpus: Sequence[Gpu]) -> Iterator[Entry]:
    """What is free on each GPU, and who holds the rest."""
    for now in read_memory(gpus, nvml):
        name = f"GPU {now.index}, memory free now"
        if now.free_bytes is None:
            yield Entry(name=name, reason=now.reason)
        else:
            yield Entry(name=name, value=now.free_bytes, unit="bytes")
        if now.holders:
            yield Entry(name=f"GPU {now.index}, processes", value=told_holders(now.holders))


def gpu_clocks(nvml: StateNvml, gpus: Sequence[Gpu]) -> tuple[Entry, ...]:
    """Clock of the multiprocessors and of the memory of each GPU, now and at most; an idle GPU's are low."""
    return _ask(nvml, gpus, _clocks)


def pcie_links(nvml: StateNvml, gpus: Sequence[Gpu]) -> tuple[Entry, ...]:
    """Generation and width of each GPU's PCIe link, now and at most; an idle GPU's generation may be low."""
    return _ask(nvml, gpus, _pcie)


def _ask(
    nvml: StateNvml, gpus: Sequence[Gpu], ask: Callable[[StateNvml, Gpu, Any], Iterator[Entry]]
) -> tuple[Entry, ...]:
    if not gpus:
        return ()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return (Entry(name="GPUs", reason=f"NVML: {error}"),)
    try:
        return tuple(entry for gpu in gpus for entry in _ask_one(nvml, gpu, ask))
    finally:
        nvml.nvmlShutdown()


def _ask_one(nvml: StateNvml, gpu: Gpu, ask: Callable[[StateNvml, Gpu, Any], Iterator[Entry]]) -> Iterator[Entry]:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(gpu.index)
    except nvml.NVMLError as error:
        yield Entry(name=f"GPU {gpu.index}", reason=f"NVML: {error}")
        return
    yield from ask(nvml, gpu, handle)


def _clocks(nvml: StateNvml, gpu: Gpu, handle: Any) -> Iterator[Entry]:
    for name, clock in (("SM", nvml.NVML_CLOCK_SM), ("memory", nvml.NVML_CLOCK_MEM)):
        for when, read in (("now", nvml.nvmlDeviceGetClockInfo), ("at most", nvml.nvmlDeviceGetMaxClockInfo)):
            title = f"GPU {gpu.index}, {name} clock {when}"
            try:
                yield Entry(name=title, value=read(handle, clock) * 1_000_000, unit="hertz")
            except nvml.NVMLError as error:
                yield Entry(name=title, reason=f"NVML: {error}")


def _pcie(nvml: StateNvml, gpu: Gpu, handle: Any) -> Iterator[Entry]:
    title = f"GPU {gpu.index}, PCIe"
    try:
        generation, width = (
            nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        )
        best, widest = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle), nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
        yield Entry(name=title, value=f"generation {generation} x{width} now, {best} x{widest} at most")
    except nvml.NVMLError as error:
        yield Entry(name=title, reason=f"NVML: {error}")
