"""The memory of a rank at each step, as the CUDA allocator or the system accounts for it.

The allocator keeps its account when the host queues work, so that nothing here waits for the device.
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
from torch import Tensor, nn
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

ASKED_SHARE = 0.005
"""Of the time of steps, what asking the allocator may take. An account is a dictionary of some 200 numbers, and making
it takes 20 to 50 us."""

STATM = Path("/proc/self/statm")

Account = Mapping[str, Any]
"""The allocator's own, nested as torch gives it."""


class StepMemory(Protocol):
    """Follows the memory of steps that come one after another."""

    def start(self) -> None:
        """The first step begins now; again after a pause."""

    def end_phase(self, name: str) -> None:
        """A phase of the running step is over."""

    def end_step(self, *, is_last: bool = False) -> list[Sample]:
        """The memory at the end of the running step and its peaks; the next begins.

        is_last: whether a pause follows, after which `start` is called again.
        """


def make_memory(device: torch.device) -> StepMemory:
    """What suits the device: the allocator's account on CUDA, the process's memory on the CPU."""
    if device.type == "cuda":
        return AllocatorMemory(
            read=partial(torch.cuda.memory_stats_as_nested_dict, device),
            reset_peak=partial(torch.cuda.reset_peak_memory_stats, device),
        )
    return ProcessMemory()


class AllocatorMemory:
    """Steps by an allocator's account, whose peak is that since it was last reset.

    It is read and reset where a phase ends, and not where one begins: so each moment of a step lies in the peak of one
    phase, and the step's own peak is the largest of theirs and of what came after the last.

    Asking takes time of the host, so that only as many steps are asked as `ASKED_SHARE` of the time of all allows: each
    step of 200 ms, about one of ten of 5 ms. The first after a start is asked always. Of the steps between, the last
    tells what is held, and the largest peak of them all: no moment is in no peak. The others tell nothing.
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
        self._is_asked = False
        self._begun_ns = 0
        self._left_ns = 0.0  # What asking may take by now, less what it took.
        self._step_cost_ns = 0  # Of the running step.
        self._expected_ns = 0  # Of the next that is asked.

    def start(self) -> None:
        """See `StepMemory.start`."""
        self._peaks_bytes = {}
        self._reset_peak()
        self._is_asked = True
        self._step_cost_ns = 0
        self._begun_ns = self._now_ns()

    def end_phase(self, name: str) -> None:
        """See `StepMemory.end_phase`; a phase that is entered several times has the largest of its peaks."""
        if not self._is_asked:
            return
        begun_ns = self._now_ns()
        peak_bytes = self._read()["allocated_bytes"]["all"]["peak"]
        self._reset_peak()
        self._peaks_bytes[name] = max(self._peaks_bytes.get(name, 0), peak_bytes)
        self._pay(self._now_ns() - begun_ns)

    def end_step(self, *, is_last: bool = False) -> list[Sample]:
        """See `StepMemory.end_step`; nothing of most steps that are too short to be asked each."""
        ended_ns = self._now_ns()
        self._left_ns += ASKED_SHARE * (ended_ns - self._begun_ns)
        self._begun_ns = ended_ns
        samples: list[Sample] = []
        if self._is_asked:
            samples = self._samples()
            account_ns = self._now_ns() - ended_ns
            self._pay(account_ns)
            # What the next step that is asked will cost, and the account of those before it.
            self._expected_ns = self._step_cost_ns + account_ns
            self._left_ns = min(self._left_ns, self._expected_ns)  # Long steps save nothing up for short ones.
            self._is_asked = self._left_ns >= self._expected_ns and not is_last
        elif is_last or self._left_ns >= self._expected_ns:
            samples = self._samples()
            self._pay(self._now_ns() - ended_ns)
            self._is_asked = not is_last
        self._step_cost_ns = 0
        return samples

    def _pay(self, cost_ns: int) -> None:
        self._left_ns -= cost_ns
        self._step_cost_ns += cost_ns

    def _samples(self) -> list[Sample]:
        """The whole account; its peak is that since it was read last."""
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
    """Steps on a CPU, where no allocator keeps an account: what the process holds at their ends, and no peaks.

    statm: the system's account of the process.
    """

    def __init__(self, statm: Path = STATM) -> None:
        self._statm = statm

    def start(self) -> None:
        """See `StepMemory.start`."""

    def end_phase(self, name: str) -> None:
        """See `StepMemory.end_phase`; nothing is known of it."""

    def end_step(self, *, is_last: bool = False) -> list[Sample]:
        """Resident memory; nothing where the system has no /proc.

        getrusage knows the largest value since the start only, which is another figure: there is no fallback to it.
        """
        try:
            pages = int(self._statm.read_text().split()[1])
        except FileNotFoundError:
            return []
        return [RESIDENT_BYTES.at(pages * os.sysconf("SC_PAGE_SIZE"))]


# The live tensors of a rank at their peak in one step, on the CPU: the account that no allocator keeps there.

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
"""MemTracker's names, and ours. temporary: made in backward, such as gradients of activations. other: lived before the
step and is none of the model's or the optimizer's, such as what compression left out of gradients; or a leak."""

NUMBER_BYTES = 8
"""Storages that are no larger hold a number or two, such as a norm, and are left out of `other`."""


class CannotTrack(RuntimeError):
    """Live tensors cannot be followed in this workload; the message says why."""


class _StepTracker(MemTracker):  # type: ignore[no-untyped-call]  # Its own base says so.
    """Looks at the step alone: MemTracker's account by module knows none whose backward comes after others' forward."""

    def _pre_bw_hook(self, module: nn.Module, args: object) -> None: ...

    def _post_bw_hook(self, module: nn.Module, args: object) -> None: ...

    def _update_peak_stats(self, peak_state: Any) -> None:
        # Its account by module takes two thirds of the time: after each operation it looks at every module.
        by_module, self.memory_tracking = self.memory_tracking, WeakIdKeyDictionary()
        super()._update_peak_stats(peak_state)
        self.memory_tracking = by_module


def live_tensor_bytes(
    run_step: Callable[[], object],
    model: nn.Module,
    optimizer: Optimizer,
    *,
    held: Mapping[str, Iterable[Tensor]] = MappingProxyType({}),
    buffers: Iterable[Tensor] = (),
    on_tracking: Callable[[Callable[[], int]], None] = lambda held_bytes: None,
) -> list[Sample]:
    """The bytes of live tensors at their peak in one step, by category and in total.

    For models on the CPU. The step runs several times slower than others and must not be measured; those after it do
    not. What gloo's threads have not let go of lives too: on a busy machine, a collective's tensors now and then.
    Tensors that lived before the step count where Python knows them, and as long as they live.
    model: the outermost module that the step calls, or a list of several.
    held: parameters, gradients and optimizer state to which model and optimizer do not lead.
    buffers: of messages; they count from their first use on, as what the step made.
    on_tracking: is handed, before the step begins, what gives the bytes of live activations at any time in it.

    Raises:
        CannotTrack: the model is compiled, or MemTracker does not know what the step does.
    """
    if any(module._compiled_call_impl is not None for module in model.modules()):
        raise CannotTrack("compiled blocks allocate where no tensor is seen; use compile=none to see them")
    tracker = _StepTracker()
    left_out = {buffer.untyped_storage()._cdata for buffer in buffers}
    lingering = [tensor for tensor in living_tensors() if tensor.untyped_storage()._cdata not in left_out]
    # What is held, the model and the optimizer come after it, and take over what is theirs.
    tracker.track_external(*lingering)
    for theirs, ours in CATEGORIES.items():
        for tensor in held.get(ours, ()):
            tracker._update_and_maybe_create_winfos(tensor, _MemRefType(theirs))
    tracker.track_external(model, optimizer)
    del lingering  # What the step lets go of shall go.

    roots = set(model.children()) if isinstance(model, nn.ModuleList) else {model}

    def forget_last_forward(module: nn.Module, arguments: object) -> None:
        # MemTracker refuses a second forward of a root, as accumulation makes, unless its account by module is reset.
        if module in roots:
            tracker.reset_mod_stats()

    # A hook of the model itself would run after the tracker's, which is global; global hooks run in order.
    handle = nn.modules.module.register_module_forward_pre_hook(forget_last_forward)
    try:
        with tracker:
            on_tracking(partial(_activation_bytes, tracker))
            run_step()
    except NotImplementedError as error:
        raise CannotTrack(str(error)) from error
    finally:
        handle.remove()
    (peak_bytes,) = tracker.get_tracker_snapshot("peak").values()
    return [LIVE_TENSOR_BYTES.at(peak_bytes[theirs], category=ours) for theirs, ours in CATEGORIES.items()]


def living_tensors() -> Iterator[Tensor]:
    """All tensors on the CPU that Python knows now, but for numbers."""
    gc.collect()  # What only a cycle holds is no leak.
    for thing in gc.get_objects():
        # By its type: other packages' proxies answer isinstance() by importing what they stand for.
        if not issubclass(type(thing), Tensor) or is_traceable_wrapper_subclass(thing) or thing.device.type != "cpu":
            continue
        if thing.untyped_storage().nbytes() > NUMBER_BYTES:
            yield thing


def _activation_bytes(tracker: MemTracker) -> int:
    return sum(of_device["Activation"] for of_device in tracker.get_tracker_snapshot("current").values())


# The activations that each pipeline stage of a rank holds, by what the forwards of its live microbatches left.
#
# Knows no workload. A forward leaves what is there after it and was not before; a microbatch holds that until the end
# of its backward, of the later half where backward is parted.


class StageMemory:
    """Follows the actions of one step."""

    def __init__(self, held_bytes: Callable[[], int]) -> None:
        """held_bytes: activations, or all tensors, that are there now."""
        self._held_bytes = held_bytes
        self._left: dict[tuple[int, int], int] = {}
        self._held: Counter[int] = Counter()
        self._most: dict[int, int] = {}

    @contextmanager
    def mark(self, action: Action) -> Iterator[None]:
        """Count what is inside as this action."""
        place = (action.stage, action.microbatch)
        if action.kind == "forward":
            with _uncollected():
                before_bytes = self._held_bytes()
                yield
                self._left[place] = self._held_bytes() - before_bytes
            self._held[action.stage] += self._left[place]
            self._most[action.stage] = max(self._most.get(action.stage, 0), self._held[action.stage])
            return
        yield
        if action.kind in ("backward", "weight_backward"):
            self._held[action.stage] -= self._left.pop(place)

    def samples(self) -> list[Sample]:
        """The most that each stage held at once, in the order of stages."""
        return [STAGE_ACTIVATION_BYTES.at(self._most[stage], stage=str(stage)) for stage in sorted(self._most)]


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep Python's collector of cycles from running.

    torch's parted backward leaves some activations in cycles (2.13): what is freed of them inside a forward would be
    taken from what the forward left.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# The training state that a rank holds: bytes behind parameters, gradients and optimizer state.


def state_bytes(
    model: nn.Module, optimizer: Optimizer, held: Mapping[str, Iterable[Tensor]] | None = None
) -> list[Sample]:
    """What this rank holds now, on whatever device; to be called after a step, while its gradients are there.

    A storage counts once and whole, in the first part that it belongs to: tensors may share it, or leave some of it
    unused. Of a DTensor the local tensor counts. A part of which the rank holds no byte is left out.
    held: the tensors of each part, where model and optimizer do not lead to them.
    """
    weights = list(model.parameters())
    found: Mapping[str, Iterable[Tensor]] = {
        "parameters": weights,
        "gradients": [weight.grad for weight in weights if weight.grad is not None],
        "optimizer": _tensors(optimizer),
    }
    counted: set[tuple[str, int]] = set()
    samples = []
    for part, tensors in (found if held is None else held).items():
        held_bytes = sum(_uncounted_bytes(tensor, counted) for tensor in tensors)
        if held_bytes:
            samples.append(STATE_BYTES.at(held_bytes, part=part))
    return samples


def _tensors(optimizer: Optimizer) -> list[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


def _uncounted_bytes(tensor: Tensor, counted: set[tuple[str, int]]) -> int:
    """The bytes of the tensor's storage, 0 if it is among those counted; adds it to them."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    storage = local.untyped_storage()
    key = str(storage.device), storage.data_ptr()
    if key in counted:
        return 0
    counted.add(key)
    return storage.nbytes()
