"""What the forkserver loads once, so that a rank starts in a tenth of a second; touches no device.

Importing it is what does it.
"""

import signal
import warnings

import torch
import torch._dynamo  # The first optimizer step of a process would load it.
import torch.distributed.device_mesh
import torch.nn.parallel
import torch.utils.checkpoint
import torch.utils.data

import bench.worker
from collectors import profiler

__all__ = ["bench", "torch"]

with warnings.catch_warnings():
    # Beside the one that is wanted the package has optimizers that torch 2.13 compiles by a function it deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch.distributed.optim  # zero1's.

profiler.warm()
# It asks a rank for its stacks, and would kill one that is too young to have been told so.
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
