"""Modules that the forkserver imports once, so that a rank starts in a tenth of a second.

Importing this module does the work. It starts no GPU driver: no process can use a CUDA or HIP driver that its parent
has started.
"""
# ruff: noqa: E402  # The garbage collector stops before the imports.

import gc
import signal
import warnings

# Imports leave no garbage, and looking for some took a seventh of their CPU time.
gc.disable()

import torch
import torch._dynamo  # Otherwise the first optimizer step of a process loads it.
import torch.distributed.device_mesh
import torch.distributed.pipelining
import torch.nn.parallel
import torch.utils.checkpoint
import torch.utils.data

import bench.engines.node.supervisor  # A rank's first function is there.
import bench.rank.worker
from collectors.rank import profiler

__all__ = ["bench", "torch"]

with warnings.catch_warnings():
    # The package also has optimizers that torch 2.13 compiles with a function that it deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch.distributed.optim  # For zero1.

if profiler.may_start_before_fork():  # With a torch for GPUs, each rank does it once it has its device.
    profiler.warm(torch.device("cpu"))
# SIGUSR1 asks a rank for its stacks. It would kill a new rank that has not installed its handler yet.
signal.signal(signal.SIGUSR1, signal.SIG_IGN)

# The imports made 300,000 objects that are never garbage. Without this, each collection of a rank visits them, which
# copies their pages, and the memory account looks for tensors among them, of which there are none.
gc.collect()
gc.freeze()
gc.enable()  # Ranks inherit this.
