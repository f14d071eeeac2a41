"""What the doctor asks of the GPUs, by a recorded node."""

from __future__ import annotations

import pynvml

from bench.machine.doctor.collect import gpu_fields
from bench.machine.doctor.page import GpuFields
from collectors.nvml.collector import NvmlCollector
from collectors.nvml.library import FieldSupport, Nvml, NVMLError
from tests.collectors.nvml.nodes import FakeClock, FakeFault, a_gpu, a_node, replayed


def _fields(nvml: Nvml, clock: FakeClock) -> GpuFields:
    def wait(seconds: float) -> None:
        clock.now_s += seconds

    return gpu_fields(NvmlCollector(nvml, clock_ns=clock.ns), wait=wait)


def _standing(fields: GpuFields, gpu: str, question: str) -> FieldSupport:
    (found,) = [one for one in fields.standings if (one.gpu, one.question) == (gpu, question)]
    return found


def test_every_gpu_stands_to_fields_functions_and_monitors() -> None:
    clock = FakeClock()
    fields = _fields(replayed(a_node(a_gpu(), a_gpu()), clock), clock)
    for gpu in ("0", "1"):
        for question in ("energy counter", "power sensor", "GPM"):
            assert _standing(fields, gpu, question).answer == "answers"
    assert fields.left_out == ()


def test_what_one_gpu_does_not_answer_is_told_of_that_gpu() -> None:
    clock = FakeClock()
    refusal = {"nvmlDeviceGetPowerUsage": pynvml.NVML_ERROR_NO_PERMISSION}
    fields = _fields(replayed(a_node(a_gpu(refusals=refusal), a_gpu()), clock), clock)
    assert _standing(fields, "0", "power sensor") == FieldSupport(
        gpu="0", question="power sensor", answer="not permitted", reason="Insufficient Permissions"
    )
    assert _standing(fields, "1", "power sensor").answer == "answers"
    assert fields.left_out == (
        "GPU 0: this process is not permitted to read power sensor; they are left out of this run",
    )


def test_a_node_without_a_driver_has_no_fields_and_a_reason() -> None:
    clock = FakeClock()

    def fail(name: str, _: tuple[object, ...]) -> None:
        if name == "nvmlInit":
            raise NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    fields = _fields(FakeFault(replayed(a_node(a_gpu()), clock), spoil=fail).spoilt, clock)
    assert fields == GpuFields(standings=(), left_out=("no NVIDIA driver: NVML library not found",))


def test_nvml_is_given_back() -> None:
    clock, called = FakeClock(), list[str]()
    nvml = FakeFault(replayed(a_node(a_gpu()), clock), spoil=lambda name, _: called.append(name)).spoilt
    _fields(nvml, clock)
    assert called[-1] == "nvmlShutdown"
