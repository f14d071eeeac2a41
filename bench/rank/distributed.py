"""How a rank joins and leaves its trial: log, device, process group, shutdown, a full disk, CUDA's start errors."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch
import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]  # Public, but in no __all__.
    FileStore,
    PrefixStore,
    Store,
    TCPStore,
    distributed_c10d,
)
from torch.distributed.distributed_c10d import _abort_process_group

from bench.errors import plural
from bench.rank.gpu_of_rank import cuda_number
from bench.rank.messages import GROUPS_MADE, RankOrder
from collectors.metrics.metric import Sample
from collectors.sample_log import Mark, Note, Reading, Record, SampleLog

TF32_VARIABLE = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
"""NVIDIA's containers set it. torch reads it once, when its context is made; settings made later take precedence."""
DESTROY_S = 10.0
"""How long a rank waits for its communicators to be destroyed; then it leaves anyway."""
ABORT_S = 2.0
"""How long a failed rank, whose peers wait for its end, waits for its communicators to be aborted."""


class Cuda(Protocol):
    """The functions of `torch.cuda` that a rank uses."""

    def init(self) -> None: ...
    def device_count(self) -> int: ...
    def set_device(self, device: Any) -> None: ...
    def get_device_properties(self, device: Any) -> Any: ...
    def synchronize(self, device: Any) -> None: ...


class Groups(Protocol):
    """The functions of `torch.distributed` that a rank uses."""

    def init_process_group(
        self,
        backend: str | None = None,
        *,
        store: Any = None,
        rank: int = -1,
        world_size: int = -1,
        timeout: timedelta | None = None,
        device_id: Any = None,
    ) -> None: ...
    def barrier(self) -> Any: ...
    def destroy_process_group(self) -> None: ...
    def is_initialized(self) -> bool: ...


class NoDevice(RuntimeError):
    """The rank cannot use the GPU that it was given."""


class TrialLog:
    """A rank's log in one trial: adds trial and time to records, and numbers the readings from 0.

    step: the step that the rank is in (of a probe: the measurement), so that a failure can be located.
    """

    def __init__(self, log: SampleLog, trial: int) -> None:
        self.step = 0
        self.readings = 0
        self.write: Callable[[Record], None] = log.write
        self._trial = trial

    def note(self, text: str) -> None:
        """Log what is absent or was skipped, and why."""
        self.write(Note(trial=self._trial, time_ns=time.time_ns(), text=text))

    def reading(self, mark: Mark, samples: list[Sample], *, begun_ns: int | None = None) -> None:
        """Log samples that were taken together; see `Reading`."""
        self.write(
            Reading(
                trial=self._trial,
                time_ns=time.time_ns(),
                mark=mark,
                step=self.readings,
                begun_ns=begun_ns,
                samples=samples,
            )
        )
        self.readings += 1


class Membership:
    """A rank's membership in the group that it has joined.

    device: the rank's device. store: the store in which the ranks met.
    """

    def __init__(self, device: torch.device, store: Store, backend: str) -> None:
        self.device = device
        self._store: Store | None = store
        self._backend = backend

    def leave_store(self, *, has_communicated: bool) -> None:
        """Report, once, that this rank no longer needs the store; see `bench.engines.node.node_store.TrialStore`.

        Call it when all process groups exist, and again when all have been used: gloo connects when a group is made,
        NCCL at the first message.
        """
        if self._store is not None and (has_communicated or self._backend == "gloo"):
            self._store.add(GROUPS_MADE, 1)
            self._store = None


@contextmanager
def joined(
    order: RankOrder,
    log: TrialLog,
    *,
    before_meeting: Callable[[torch.device], object] | None = None,
    cuda: Cuda = torch.cuda,
    groups: Groups = dist,
    destroy_s: float = DESTROY_S,
) -> Iterator[Membership]:
    """Join the order's trial; yield the rank's membership. On exit, wait until the rank may leave.

    before_meeting: called with the device before the rank meets the others.

    Raises:
        NoDevice: there is no GPU for the rank, or NCCL would have to share it.
        LogUnwritable: the log cannot be written.
    """
    device = take_device(order, cuda)
    if device.type == "cuda" and (reason := switch_tf32_off()) is not None:
        log.note(reason)
    if before_meeting is not None:
        before_meeting(device)

    refuse_objects()
    store = _store_of(order)
    if order.case.backend == "nccl":
        _refuse_shared(order, store, device, cuda)
    groups.init_process_group(
        order.case.backend,
        store=store,
        rank=order.rank,
        world_size=order.case.ranks,
        timeout=timedelta(seconds=order.collective_timeout_s),
        device_id=device if order.case.backend == "nccl" else None,
    )
    yield Membership(device, store, order.case.backend)
    if device.type == "cpu":
        return

    # Wait until all ranks' devices are done, then destroy the communicators: if a rank left earlier, its peers' devices
    # might still wait for data from it. A peer may even lack the last bytes of a message that the sender's device has
    # finished; only destroying the communicator ensures that they arrive.
    # Source: the warning of torch's ProcessGroupNCCL on a missing destroy_process_group; pytorch issue 122358.
    cuda.synchronize(device)
    wait_for_all(device, cuda, groups)
    if order.case.backend == "nccl" and not _within(destroy_s, groups.destroy_process_group, order, cuda):
        print(f"rank {order.rank}: its communicators were not destroyed within {destroy_s:g} s; the rank ends anyway")


def _store_of(order: RankOrder) -> Store:
    """Return the store in which the trial's ranks meet."""
    patience = timedelta(seconds=order.store_timeout_s)
    if not isinstance(order.store, str):
        store = TCPStore(order.store.host, order.store.port, is_master=False, timeout=patience)
        return PrefixStore(order.store.prefix, store)
    folder = Path(order.store).parent
    if not folder.is_dir():  # torch would wait for the folder until the trial's limit.
        raise RuntimeError(
            f"this rank does not see {folder}, where the ranks of one machine meet: all nodes use the loopback address,"
            " but their folders for temporary files differ; set TMPDIR to one folder on all of them"
        )
    file = FileStore(order.store)
    file.set_timeout(patience)
    return file


def refuse_objects() -> None:
    """Stop collectives of this process from unpickling: a pickle can run code, and gloo does not identify the sender.

    Our workloads send tensors only; torch and DeepSpeed send objects only for features that no workload here uses.
    """
    distributed_c10d._tensor_to_object = _refuse_object


def _refuse_object(*_: object) -> NoReturn:
    raise RuntimeError("a collective received a Python object, which a rank never unpickles; send tensors")


def take_device(order: RankOrder, cuda: Cuda = torch.cuda) -> torch.device:
    """Make the rank's device the current one before anything is allocated; return it.

    Raises:
        NoDevice: CUDA shows this process no GPU.
        RuntimeError: CUDA cannot be started; its message says why.
    """
    torch.set_num_threads(order.case.threads)
    if order.case.device == "cpu":
        return torch.device("cpu")
    count = cuda.device_count()
    if not count:
        cuda.init()  # Raises with the reason, if CUDA knows it.
        raise NoDevice(
            f"CUDA shows rank {order.rank} no GPU, although NVML showed GPUs to the runner; check `nvidia-smi` in the"
            " ranks' environment, CUDA_VISIBLE_DEVICES and /dev/nvidia*"
        )
    device = torch.device("cuda", cuda_number(order.local_rank, count))
    cuda.set_device(device)
    return device


def _refuse_shared(order: RankOrder, store: Store, device: torch.device, cuda: Cuda) -> None:
    """Refuse a GPU that another rank has taken. Ranks compare UUIDs, because each may see its own GPU as number 0.

    Raises:
        NoDevice: another rank has it.
    """
    uuid = cuda.get_device_properties(device).uuid
    if store.add(f"ranks on GPU {uuid}", 1) > 1:
        raise NoDevice(
            f"CUDA shows rank {order.rank} {plural(cuda.device_count(), 'GPU')}, and another rank has GPU {uuid}, but"
            " NCCL needs one for each rank; `observatory doctor` shows what hides the others"
        )


def switch_tf32_off() -> str | None:
    """Make CUDA compute fp32 in fp32; return a note if TF32 was on for matrix products, else None.

    Convolutions have TF32 on by default, but no workload here has convolutions, so the note ignores them.
    """
    was_on = torch.backends.cuda.matmul.fp32_precision == "tf32"
    # The old names also set the new ones; if the new ones were set, torch would refuse to read the old ones.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if not was_on:
        return None
    cause = f" by {TF32_VARIABLE}={os.environ[TF32_VARIABLE]}" if TF32_VARIABLE in os.environ else ""
    return f"TF32 was on{cause} and was switched off: fp32 products are computed in fp32"


def gpu_uuid(order: RankOrder, cuda: Cuda = torch.cuda) -> str | None:
    """Return the UUID of the rank's GPU or MIG instance, as CUDA writes UUIDs.

    None on a CPU, and if CUDA fails, which the rank will report when it joins.
    """
    if order.case.device == "cpu":
        return None
    with suppress(RuntimeError, AssertionError):
        # Make it the current device first: starting CUDA on another GPU would leave a context there.
        uuid = str(cuda.get_device_properties(take_device(order, cuda)).uuid)
        # A process sees one MIG instance, for which CUDA may give the UUID of the GPU that it is part of.
        return order.gpu.cuda_uuid if order.gpu is not None and order.gpu.is_instance else uuid
    return None


def all_agree(yes: bool, device: torch.device) -> bool:
    """Return whether `yes` is true on every rank."""
    answer = torch.tensor(int(yes), device=device)
    dist.all_reduce(answer, dist.ReduceOp.MIN)
    return bool(answer.item())


def wait_for_all(device: torch.device, cuda: Cuda = torch.cuda, groups: Groups = dist) -> None:
    """Meet all ranks before a window of steps, so that its first step does not wait for a late rank."""
    groups.barrier()
    if device.type == "cuda":
        cuda.synchronize(device)


def give_up(
    order: RankOrder,
    *,
    cuda: Cuda = torch.cuda,
    groups: Groups = dist,
    abort: Callable[[], None] = _abort_process_group,
) -> None:
    """Abort the communicators of a failed rank, so that no kernel on its device waits for peers.

    Call it after the rank has logged why it failed and written its flight record.
    """
    if order.case.backend == "nccl" and groups.is_initialized():
        _within(ABORT_S, abort, order, cuda)


def stay_on_device(order: RankOrder, cuda: Cuda = torch.cuda) -> None:
    """Make the rank's GPU, if it has one, the current device of this thread; new threads begin on the first GPU."""
    if order.case.device == "cuda" and (count := cuda.device_count()):
        cuda.set_device(cuda_number(order.local_rank, count))


def _within(limit_s: float, call: Callable[[], object], order: RankOrder, cuda: Cuda) -> bool:
    """Run the call in a daemon thread; return whether it returned or raised within the limit."""
    done = threading.Event()

    def run() -> None:
        try:
            stay_on_device(order, cuda)
            call()
        except Exception as error:  # noqa: BLE001  # Whatever it is, the rank leaves now.
            print(f"while destroying communicators: {type(error).__name__}: {error}")
        finally:
            done.set()

    threading.Thread(target=run, name="destroying communicators", daemon=True).start()
    return done.wait(limit_s)


# Errors while CUDA starts in a rank, translated into a cause and the next step.

_CAUSES: tuple[tuple[str, str], ...] = (
    (r"Torch not compiled with CUDA enabled", "torch is built without CUDA: install a CUDA build"),
    (
        r"driver on your system is too old|driver version is insufficient",
        "the driver is older than torch's CUDA: install a newer driver, or a torch for the CUDA that it supports"
        " (`observatory doctor`)",
    ),
    (
        r"Found no NVIDIA driver",
        "this process finds no NVIDIA driver (libcuda.so.1), although NVML answered: in a container, set"
        " NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ),
    (
        r"No CUDA GPUs are available|no CUDA-capable device is detected",
        "CUDA shows the rank no GPU: check CUDA_VISIBLE_DEVICES, /dev/nvidia* and `nvidia-smi -L`",
    ),
    (
        r"invalid device ordinal",
        "CUDA shows fewer GPUs than NVML: check CUDA_VISIBLE_DEVICES and, if MIG is on, `nvidia-smi -L`",
    ),
    (
        r"busy or unavailable",
        "another process holds the GPU exclusively: check its compute mode (`nvidia-smi -q -d COMPUTE`);"
        " `observatory doctor` names the processes",
    ),
    (
        r"CUDA error: out of memory",
        "the GPU lacks the memory that CUDA and its libraries need in addition to torch's: `observatory doctor` shows"
        " what is free and which processes hold the rest",
    ),
    (
        r"system not yet initialized",
        "the NVSwitches of this node are not set up: start nvidia-fabricmanager in the driver's version",
    ),
    (
        r"forward compatibility was attempted|unsupported display driver / cuda driver combination",
        "the CUDA driver library does not match the kernel driver: remove cuda-compat from LD_LIBRARY_PATH, or restart"
        " the container after a driver change",
    ),
    (
        r"no kernel image is available",
        "this torch has no kernels for this kind of GPU (torch.cuda.get_arch_list() lists the supported ones): install"
        " a torch that is built for it",
    ),
    (
        r"CUDA error: initialization error|Cannot re-initialize CUDA in forked subprocess",
        "the driver failed, or the process that ranks are forked from had already started CUDA, for example in a"
        " sitecustomize.py that uses the GPU: check `nvidia-smi` and `dmesg`",
    ),
    (
        r"Unexpected error from cudaGetDeviceCount.*Error (?P<number>\d+): (?P<words>.*)",
        "the driver does not start (error {number}, {words}): check `nvidia-smi` and `dmesg`",
    ),
)
"""Pairs of an error pattern of torch or CUDA, and its cause with the next step; the first match counts.

Source: torch's c10/cuda/CUDAFunctions.cpp and CUDAException.cpp; cudaGetErrorString.
"""


def with_cause(error: BaseException) -> BaseException:
    """Return the error, or a NoDevice in its place if CUDA could not be started or another process holds the GPU."""
    if isinstance(error, NoDevice) or not isinstance(error, RuntimeError | AssertionError):
        return error
    message = str(error)
    for pattern, cause in _CAUSES:
        if match := re.search(pattern, message):
            return NoDevice(
                f"{cause.format(**match.groupdict())} (CUDA's message: {message.splitlines()[0].split('. ')[0]})"
            )
    return error


class DiskFull(OSError):
    """A file of the rank could not be written because the disk or the user's quota is full."""


_FULL = {number: os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT)}


def as_full_disk(error: BaseException) -> DiskFull | None:
    """Return a `DiskFull` if the error comes from a full disk, or was raised while handling such an error; else None.

    For example, closing an archive after a failed write raises a ValueError. C++ code passes on the system's words.
    """
    cause: BaseException | None = error
    if isinstance(error, DiskFull):  # Already explained.
        return error
    while cause is not None:
        for number, words in _FULL.items():
            if isinstance(cause, OSError) and cause.errno == number:
                return DiskFull(f"{words}: {cause.filename}" if cause.filename else words)
            if words in str(cause):
                return DiskFull(next(line for line in str(cause).splitlines() if words in line))
        cause = cause.__cause__ or cause.__context__
    return None
