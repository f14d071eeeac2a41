"""Memory of a rank: at each step, of live tensors at their peak, of pipeline stages, and of the training state.

Step memory comes from the CUDA allocator's statistics or, on the CPU, from the process's resident memory. The allocator
counts when the host queues work, so this code never waits for the device.
"""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor, UntypedStorage, nn
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.weak import WeakIdKeyDictionary

from collectors.metrics.metric import Sample
from collectors.metrics.rank import (
    ACTIVE_BYTES,
    ALLOCATED_BYTES,
    ALLOCATION_RETRIES,
    INACTIVE_SPLIT_BYTES,
    LIVE_TENSOR_BYTES,
    OUT_OF_MEMORY,
    PEAK_BYTES,
    PHASE_PEAK_BYTES,
    RESERVED_BYTES,
    RESIDENT_BYTES,
    STAGE_ACTIVATION_BYTES,
    STATE_BYTES,
)
from workloads.cost_models.schedules import Action

READING_SHARE = 0.005
"""Maximum share of the steps' time for reading the allocator's statistics. A reading is a dictionary of about 200
numbers and takes 20 to 50 us."""

STATM = Path("/proc/self/statm")

Account = Mapping[str, Any]
"""The allocator's statistics, nested as torch returns them."""


class StepMemory(Protocol):
    """Follows the memory of consecutive steps."""

    def start(self) -> None:
        """Begin the first step, or the next one after a pause."""

    def end_phase(self, name: str) -> None:
        """End a phase of the running step."""

    def end_step(self, *, is_last: bool = False) -> list[Sample]:
        """Begin the next step; return the memory at the end of the last one, and its peaks.

        is_last: a pause follows, after which `start` is called again.
        """


def make_memory(device: torch.device) -> StepMemory:
    """Return the `StepMemory` for the device: the allocator's statistics on CUDA, the process's memory on the CPU."""
    if device.type == "cuda":
        return AllocatorMemory(
            read=partial(torch.cuda.memory_stats_as_nested_dict, device),
            reset_peak=partial(torch.cuda.reset_peak_memory_stats, device),
        )
    return ProcessMemory()


class AllocatorMemory:
    """`StepMemory` from an allocator's statistics, whose peak counts since it was last reset.

    The peak is read and reset only at the end of a phase. So each moment of a step counts for the peak of one phase,
    and the step's own peak is the largest of the phases' peaks and of the peak after the last phase.

    Reading takes host time, so only as many steps are read in full as fit into `READING_SHARE` of all steps' time:
    every step of 200 ms, about one in ten steps of 5 ms. The first step after a start is always read. Of the steps
    between two full ones only the last reports: the memory then held, and the peak over all of them, so that the peaks
    cover every moment.
    """

    def __init__(
        self,
        *,
        read: Callable[[], Account],
        reset_peak: Callable[[], None],
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._read = read
        self._reset_peak = reset_peak
        self._now_ns = now_ns
        self._peaks_bytes: dict[str, int] = {}
        self._is_read_in_full = False
        self._begun_ns = 0
        self._budget_ns = 0.0  # Remaining time budget for reading.
        self._step_cost_ns = 0  # Time of the running step's readings.
        self._expected_ns = 0  # Estimated cost of the next step that is read in full.

    def start(self) -> None:
        self._peaks_bytes = {}
        self._reset_peak()
        self._is_read_in_full = True
        self._step_cost_ns = 0
        self._begun_ns = self._now_ns()

    def end_phase(self, name: str) -> None:
        """See `StepMemory.end_phase`. A phase that is entered several times reports its largest peak."""
        if not self._is_read_in_full:
            return
        begun_ns = self._now_ns()
        peak_bytes = self._read()["allocated_bytes"]["all"]["peak"]
        self._reset_peak()
        self._peaks_bytes[name] = max(self._peaks_bytes.get(name, 0), peak_bytes)
        self._pay(self._now_ns() - begun_ns)

    def end_step(self, *, is_last: bool = False) -> list[Sample]:
        """See `StepMemory.end_step`. Returns nothing for most steps if steps are too short to read each."""
        ended_ns = self._now_ns()
        self._budget_ns += READING_SHARE * (ended_ns - self._begun_ns)
        self._begun_ns = ended_ns
        samples: list[Sample] = []
        if self._is_read_in_full:  # This step was read in full.
            samples = self._samples()
            account_ns = self._now_ns() - ended_ns
            self._pay(account_ns)
            # Cost of the next full step: as many readings as this one, and the report of the steps before it.
            self._expected_ns = self._step_cost_ns + account_ns
            self._budget_ns = min(self._budget_ns, self._expected_ns)  # Long steps must not save budget for short ones.
            self._is_read_in_full = self._budget_ns >= self._expected_ns and not is_last
        elif is_last or self._budget_ns >= self._expected_ns:
            # It was not, but the next one will be, or a pause follows.
            samples = self._samples()
            self._pay(self._now_ns() - ended_ns)
            self._is_read_in_full = not is_last
        self._step_cost_ns = 0
        return samples

    def _pay(self, cost_ns: int) -> None:
        self._budget_ns -= cost_ns
        self._step_cost_ns += cost_ns

    def _samples(self) -> list[Sample]:
        """Return all samples; the peak counts since the last reading, or since `start`."""
        account = self._read()
        self._reset_peak()
        peaks_bytes, self._peaks_bytes = self._peaks_bytes, {}
        allocated_bytes = account["allocated_bytes"]["all"]
        return [
            ALLOCATED_BYTES.at(allocated_bytes["current"]),
            RESERVED_BYTES.at(account["reserved_bytes"]["all"]["current"]),
            ACTIVE_BYTES.at(account["active_bytes"]["all"]["current"]),
            INACTIVE_SPLIT_BYTES.at(account["inactive_split_bytes"]["all"]["current"]),
            PEAK_BYTES.at(max([allocated_bytes["peak"], *peaks_bytes.values()])),
            *(PHASE_PEAK_BYTES.at(peak_bytes, phase=phase) for phase, peak_bytes in peaks_bytes.items()),
            ALLOCATION_RETRIES.at(account["num_alloc_retries"]),
            OUT_OF_MEMORY.at(account["num_ooms"]),
        ]


class ProcessMemory:
    """`StepMemory` on a CPU, whose allocator has no statistics: resident memory at the end of each step, no peaks.

    statm: the system's memory account of the process.
    """

    def __init__(self, statm: Path = STATM) -> None:
        self._statm = statm

    def start(self) -> None: ...

    def end_phase(self, name: str) -> None:
        """See `StepMemory.end_phase`; phases are not measured on a CPU."""

    def end_step(self, *, is_last: bool = False) -> list[Sample]:
        """Return resident memory; nothing if the system has no /proc.

        There is no fallback to getrusage, which reports only the maximum since the start.
        """
        try:
            pages = int(self._statm.read_text().split()[1])
        except FileNotFoundError:
            return []
        return [RESIDENT_BYTES.at(pages * os.sysconf("SC_PAGE_SIZE"))]


# Live tensors at their peak in one step on the CPU, tracked with torch's MemTracker.

CATEGORIES = {
    "Parameter": "parameters",
    "Buffer": "buffers",
    "Gradient": "gradients",
    "Activation": "activations",
    "Temp": "temporary",
    "Optstate": "optimizer",
    "Other": "other",
    "Total": "total",
}
"""Our names, by MemTracker's. temporary: made in backward, for example gradients of activations. other: existed before
the step and belongs to neither model nor optimizer, for example the residuals of gradient compression, or a leak."""

NUMBER_BYTES = 8
"""Storages up to this size hold a number or two, for example a norm, and do not count as `other`."""


class CannotTrack(RuntimeError):
    """Live tensors cannot be tracked in this workload; the message says why."""


class _StepTracker(MemTracker):  # type: ignore[no-untyped-call]  # Untyped in torch.
    """Tracks no modules: MemTracker's statistics by module fail if a backward follows another module's forward."""

    def _pre_bw_hook(self, module: nn.Module, args: object) -> None: ...

    def _post_bw_hook(self, module: nn.Module, args: object) -> None: ...

    def _update_peak_stats(self, peak_state: Any) -> None:
        # The statistics by module take two thirds of the time: after each operation they visit every module.
        by_module, self.memory_tracking = self.memory_tracking, WeakIdKeyDictionary()
        super()._update_peak_stats(peak_state)
        self.memory_tracking = by_module


def live_tensor_bytes(
    run_step: Callable[[], object],
    model: nn.Module,
    optimizer: Optimizer,
    *,
    tensors_of: Mapping[str, Iterable[Tensor]] = MappingProxyType({}),
    buffers: Iterable[Tensor] = (),
    on_tracking: Callable[[Callable[[], int]], None] = lambda held_bytes: None,
) -> list[Sample]:
    """Return the bytes of live tensors at their peak in one step, by category and in total.

    For models on the CPU. The step runs several times slower than others and must not be measured; later steps run at
    full speed. Tensors that gloo's threads still hold count as live; on a busy machine this occasionally includes those
    of a collective. Tensors from before the step count for as long as they live, if Python knows them.
    model: the outermost module that the step calls, or a list of several.
    tensors_of: by category, parameters, gradients and optimizer state that cannot be reached from model and optimizer.
    buffers: of messages. They count from their first use on, like tensors that the step makes.
    on_tracking: called before the step begins, with a function that returns the bytes of live activations.

    Raises:
        CannotTrack: the model is compiled, or MemTracker does not support an operation of the step.
    """
    if any(module._compiled_call_impl is not None for module in model.modules()):
        raise CannotTrack("compiled blocks allocate where no tensor is seen; use compile=none to see them")
    tracker = _StepTracker()
    left_out = {buffer.untyped_storage()._cdata for buffer in buffers}
    lingering = [tensor for tensor in living_tensors() if tensor.untyped_storage()._cdata not in left_out]
    # First count all as `other`; `tensors_of`, model and optimizer then claim their tensors.
    tracker.track_external(*lingering)
    for torch_name, category in CATEGORIES.items():
        for tensor in tensors_of.get(category, ()):
            tracker._update_and_maybe_create_winfos(tensor, _MemRefType(torch_name))
    tracker.track_external(model, optimizer)
    del lingering  # So that tensors can be freed when the step releases them.

    roots = set(model.children()) if isinstance(model, nn.ModuleList) else {model}

    def forget_last_forward(module: nn.Module, arguments: object) -> None:
        # MemTracker refuses a root's second forward, which accumulation needs, unless its module statistics are reset.
        if module in roots:
            tracker.reset_mod_stats()

    def activation_bytes() -> int:
        return sum(of_device["Activation"] for of_device in tracker.get_tracker_snapshot("current").values())

    # A hook of the model itself would run after the tracker's, which is global; global hooks run in order of creation.
    handle = nn.modules.module.register_module_forward_pre_hook(forget_last_forward)
    try:
        with tracker:
            on_tracking(activation_bytes)
            run_step()
    except NotImplementedError as error:
        raise CannotTrack(str(error)) from error
    finally:
        handle.remove()
    (peak_bytes,) = tracker.get_tracker_snapshot("peak").values()
    return [
        LIVE_TENSOR_BYTES.at(peak_bytes[torch_name], category=category) for torch_name, category in CATEGORIES.items()
    ]


def living_tensors() -> Iterator[Tensor]:
    """Yield all CPU tensors that Python knows now, except tensors of a number or two."""
    gc.collect()  # A tensor that only a reference cycle holds is not a leak.
    for thing in gc.get_objects():
        # Check the type: isinstance() would make other packages' lazy proxies import their modules.
        if not issubclass(type(thing), Tensor) or is_traceable_wrapper_subclass(thing) or thing.device.type != "cpu":
            continue
        if thing.untyped_storage().nbytes() > NUMBER_BYTES:
            yield thing


# Activations of each pipeline stage: the bytes that the forwards of its live microbatches left behind.


class StageMemory:
    """Follows the activations that each pipeline stage of a rank holds in one step.

    Knows no workload. A forward leaves the bytes by which memory has grown at its end. The microbatch holds them until
    the end of its backward, or of `weight_backward` if backward is split.
    """

    def __init__(self, held_bytes: Callable[[], int]) -> None:
        """held_bytes: returns the current bytes of activations, or of all tensors."""
        self._held_bytes = held_bytes
        self._bytes_of_microbatch: dict[tuple[int, int], int] = {}
        self._live_bytes: Counter[int] = Counter()
        self._most: dict[int, int] = {}

    @contextmanager
    def mark(self, action: Action) -> Iterator[None]:
        """Count the body of the `with` as this action."""
        microbatch = (action.stage, action.microbatch)
        # Example: two forwards of stage 0 leave 3 and 4 bytes, then both backwards run: it holds 3, 7, 4, 0; most 7.
        if action.kind == "forward":
            with _uncollected():
                before_bytes = self._held_bytes()
                yield
                self._bytes_of_microbatch[microbatch] = self._held_bytes() - before_bytes
            self._live_bytes[action.stage] += self._bytes_of_microbatch[microbatch]
            self._most[action.stage] = max(self._most.get(action.stage, 0), self._live_bytes[action.stage])
            return
        yield
        if action.kind in ("backward", "weight_backward"):
            self._live_bytes[action.stage] -= self._bytes_of_microbatch.pop(microbatch)

    def samples(self) -> list[Sample]:
        """Return the most bytes that each stage held at once, in order of stages."""
        return [STAGE_ACTIVATION_BYTES.at(self._most[stage], stage=str(stage)) for stage in sorted(self._most)]


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable Python's cycle collector.

    torch's split backward leaves some activations in cycles (2.13). If they were freed during a forward, their bytes
    would be subtracted from those that the forward leaves.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# Training state of a rank: bytes of parameters, gradients and optimizer state.


StateTensors = Mapping[str, Iterable[Tensor]]
"""Tensors of the training state, by the names parameters, gradients and optimizer."""


def states_of(model: nn.Module, optimizer: Optimizer) -> StateTensors:
    """Return the training state that is reachable from model and optimizer now."""
    weights = list(model.parameters())
    return {
        "parameters": weights,
        "gradients": [weight.grad for weight in weights if weight.grad is not None],
        "optimizer": [
            value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)
        ],
    }


def state_bytes(states: StateTensors) -> list[Sample]:
    """Return the bytes of the training state that this rank holds; call it after a step, while gradients exist.

    A storage counts once and in full, for the first part that it belongs to, since tensors may share it or use only
    some of it. A part of 0 bytes is left out.
    """
    storages: set[tuple[str, int]] = set()
    samples = []
    for part, tensors in states.items():
        held_bytes = 0
        for tensor in tensors:
            storage = local_storage(tensor)
            key = str(storage.device), storage.data_ptr()
            if key not in storages:
                storages.add(key)
                held_bytes += storage.nbytes()
        if held_bytes:
            samples.append(STATE_BYTES.at(held_bytes, part=part))
    return samples


def local_storage(tensor: Tensor) -> UntypedStorage:
    """Return this rank's storage of a tensor, which may be a DTensor."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage()
