"""The most bytes of tensors that live at once while a rank's workload is built."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.workloads.training.setups import SmallSetup
from tests.workloads.training.training_runs import make_ready
from workloads.core import weights


def building_peak(setup: SmallSetup, chunk: int) -> int:
    """Build the setup's strategy on this rank; the peak, the tables of the rotary embedding included.

    chunk: elements of a weight that are made at a time.
    """
    with patch.object(weights, "CHUNK_ELEMENTS", chunk), LiveBytes() as live:
        make_ready(setup)
    peak_bytes: int = live.peak_bytes
    return peak_bytes


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives no types.
    """Adds up the memory behind all tensors that operators give, for as long as something holds it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes = 0
        self._live_bytes = 0
        self._held: dict[int, tuple[int, weakref.ref[Any]]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in (out,) if isinstance(out, Tensor) else tree_leaves(out):  # Nearly all operators give one tensor.
            if isinstance(leaf, Tensor):
                self._hold(leaf)
        self.peak_bytes = max(self.peak_bytes, self._live_bytes)
        return out

    def _hold(self, tensor: Tensor) -> None:
        local = getattr(tensor, "_local_tensor", tensor)
        if local.device == torch.device("meta"):
            return
        storage = local.untyped_storage()
        key = storage._cdata
        if key not in self._held:
            gone = weakref.ref(storage, partial(self._let_go, key))
            self._held[key] = storage.nbytes(), gone
            self._live_bytes += storage.nbytes()

    def _let_go(self, key: int, gone: object) -> None:
        size_bytes, _ = self._held.pop(key)
        self._live_bytes -= size_bytes
