"""What torch and CUDA say when a rank cannot start CUDA is told in plain words with the next move, in one line."""

from __future__ import annotations

import pytest

from bench.rank.distributed import NoDevice, with_cause

_ADVICE = """
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
"""
_UNEXPECTED = (
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that"
    " might have already set an error? Error "
)


class AcceleratorError(RuntimeError):
    """As torch's own is derived."""


@pytest.mark.parametrize(
    ("said", "words", "move"),
    [
        (
            "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver by"
            " downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx",
            "the driver is older than torch's CUDA",
            "install a newer driver",
        ),
        (
            "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
            "this process finds no NVIDIA driver (libcuda.so.1)",
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ),
        ("No CUDA GPUs are available", "CUDA shows the rank no GPU", "CUDA_VISIBLE_DEVICES"),
        (f"CUDA error: no CUDA-capable device is detected{_ADVICE}", "CUDA shows the rank no GPU", "nvidia-smi -L"),
        (f"CUDA error: invalid device ordinal{_ADVICE}", "CUDA shows fewer GPUs than NVML", "CUDA_VISIBLE_DEVICES"),
        (
            f"CUDA error: CUDA-capable device(s) is/are busy or unavailable{_ADVICE}",
            "another process holds the GPU exclusively",
            "observatory doctor",
        ),
        (f"CUDA error: out of memory{_ADVICE}", "the GPU lacks the memory that CUDA", "observatory doctor"),
        (f"CUDA error: initialization error{_ADVICE}", "the driver failed, or the process", "dmesg"),
        (f"{_UNEXPECTED}802: system not yet initialized", "the NVSwitches of this node", "nvidia-fabricmanager"),
        (
            f"{_UNEXPECTED}804: forward compatibility was attempted on non supported HW",
            "the CUDA driver library does not match",
            "LD_LIBRARY_PATH",
        ),
        (f"{_UNEXPECTED}999: unknown error", "the driver does not start (error 999, unknown error)", "dmesg"),
        (
            f"CUDA error: no kernel image is available for execution on the device{_ADVICE}",
            "this torch has no kernels for this kind of GPU",
            "get_arch_list()",
        ),
    ],
)
def test_a_first_touch_that_fails_is_one_line_in_plain_words(said: str, words: str, move: str) -> None:
    error = with_cause(AcceleratorError(said))
    assert isinstance(error, NoDevice)
    assert str(error).startswith(words)
    assert move in str(error)
    assert said.split(". ")[0].splitlines()[0] in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.19 GiB"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("[gloo] Connection closed by peer"),
        ValueError("No CUDA GPUs are available"),
        KeyboardInterrupt(),
    ],
    ids=str,
)
def test_what_the_workload_itself_did_stays_what_it_is(error: BaseException) -> None:
    assert with_cause(error) is error
