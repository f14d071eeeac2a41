"""DeepSpeed in a rank that has met the others already: without its launcher, its compiled operators and its banners.

What it wants of the environment is set here, and nowhere else. Does nothing when imported, and DeepSpeed is not.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

import torch

from workloads.cards.card import Backend, Device

DEPRECATED_CALLS = r"`torch\.distributed\.(all_gather_into_tensor|reduce_scatter_tensor)` is deprecated"


def start(device: Device, backend: Backend) -> ModuleType:
    """The module `deepspeed`, which has taken over the process group that is there.

    device: the accelerator that it uses, where it would look for one by itself.
    """
    # The engine reads it in every step. A rank that has no GPU is the first of its kind.
    os.environ["LOCAL_RANK"] = str(torch.cuda.current_device() if device == "cuda" else 0)
    with _environment(DS_ACCELERATOR=device):
        deepspeed = import_module("deepspeed")
    # Beside what collectives need, it would compile an operator for inference on a CPU, by the compiler of the machine,
    # when it takes the group over. With none declared to be there, it uses torch's all_reduce.
    deepspeed.ops.__compatible_ops__ = {}
    _import_muon()
    # torch 2.13 has new names for what DeepSpeed calls in each step, also in autograd's threads.
    warnings.filterwarnings("ignore", DEPRECATED_CALLS, FutureWarning)
    deepspeed.init_distributed(dist_backend=backend, dist_init_required=False, verbose=False)
    return deepspeed


def _import_muon() -> None:
    """Load an optimizer that DeepSpeed compares ours with, without loading torch's compiler to compile its kernels."""
    with _environment(TORCHDYNAMO_DISABLE="1"):
        import_module("deepspeed.runtime.zero.muon.muon_optimizer")


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """These variables for the time of an import; those that stood before stand again after it."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
