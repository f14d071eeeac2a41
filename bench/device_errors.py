"""What it means when CUDA cannot be started in a rank: in plain words, with the next move."""

from __future__ import annotations

import re

from bench.joining import NoDevice

_MEANINGS: tuple[tuple[str, str], ...] = (
    (r"Torch not compiled with CUDA enabled", "torch is built without CUDA: install a CUDA build"),
    (
        r"driver on your system is too old|driver version is insufficient",
        "its driver is older than torch's CUDA: install a newer driver, or a torch for the CUDA that the driver runs"
        " (`observatory doctor`)",
    ),
    (
        r"Found no NVIDIA driver",
        "there is no NVIDIA driver (libcuda.so.1) for this process, though NVML answered: in a container set"
        " NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ),
    (
        r"No CUDA GPUs are available|no CUDA-capable device is detected",
        "CUDA shows it no GPU: look at CUDA_VISIBLE_DEVICES, /dev/nvidia* and `nvidia-smi -L`",
    ),
    (
        r"invalid device ordinal",
        "CUDA shows fewer GPUs than NVML: look at CUDA_VISIBLE_DEVICES and, where MIG is on, at `nvidia-smi -L`",
    ),
    (
        r"busy or unavailable",
        "the GPU is held by another process alone: look at its compute mode (`nvidia-smi -q -d COMPUTE`) and at"
        " `observatory doctor`, which names the processes",
    ),
    (
        r"CUDA error: out of memory",
        "the GPU has not the memory that CUDA and its libraries take beside torch's: `observatory doctor` says what is"
        " free and who holds the rest",
    ),
    (
        r"system not yet initialized",
        "the NVSwitches of this node are not set up: start nvidia-fabricmanager, of the driver's own version",
    ),
    (
        r"forward compatibility was attempted|unsupported display driver / cuda driver combination",
        "the CUDA driver library does not fit the driver in the kernel: take cuda-compat out of LD_LIBRARY_PATH, or"
        " start the container anew after the driver was changed",
    ),
    (
        r"no kernel image is available",
        "this torch has no kernels for a GPU of its kind (torch.cuda.get_arch_list() names those it has): install a"
        " torch that is built for it",
    ),
    (
        r"CUDA error: initialization error|Cannot re-initialize CUDA in forked subprocess",
        "its driver failed, or the process that ranks are forked from had started CUDA, as a sitecustomize.py that uses"
        " the GPU does: look at `nvidia-smi` and `dmesg`",
    ),
    (
        r"Unexpected error from cudaGetDeviceCount.*Error (?P<number>\d+): (?P<words>.*)",
        "its driver does not start (error {number}, {words}): look at `nvidia-smi` and `dmesg`",
    ),
)
"""What torch and CUDA say, and what it means, the first that fits.

Source: torch's c10/cuda/CUDAFunctions.cpp and CUDAException.cpp; cudaGetErrorString.
"""


def named(error: BaseException) -> BaseException:
    """The error; NoDevice in its place, where CUDA could not be started or another process is in the way."""
    if isinstance(error, NoDevice) or not isinstance(error, RuntimeError | AssertionError):
        return error
    said = str(error)
    for pattern, meaning in _MEANINGS:
        if found := re.search(pattern, said):
            return NoDevice(f"{meaning.format(**found.groupdict())} (it said: {said.splitlines()[0].split('. ')[0]})")
    return error
