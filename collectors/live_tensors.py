"""The live tensors of a rank at their peak in one step, on the CPU: the account that no allocator keeps there."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.weak import WeakIdKeyDictionary

from collectors.catalogue.memory import LIVE_TENSOR_BYTES
from collectors.metric import Sample

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
