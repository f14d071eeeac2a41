"""What the forkserver loads once, so that a rank starts in a tenth of a second; starts no driver of a GPU.

Importing it is what does it. No process can use a driver of CUDA or HIP that its parent has started.
"""

import signal
import warnings

import torch
import torch._dynamo  # The first optimizer step of a process would load it.
import torch.distributed.device_mesh
import torch.nn.parallel
import torch.utils.checkpoint
import torch.utils.data

import bench.rank.worker
from collectors.rank import profiler

__all__ = ["bench", "torch"]

with warnings.catch_warnings():
    # Beside the one that is wanted the package has optimizers that torch 2.13 compiles by a function it deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch.distributed.optim  # zero1's.

if profiler.may_start_before_fork():  # With a build for GPUs each rank does it, once it has its device.
    profiler.warm(torch.device("cpu"))
# It asks a rank for its stacks, and would kill one that is too young to have been told so.
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
