"""What the forkserver loads once, so that a rank starts in a tenth of a second; touches no device.

Importing it is what does it.
"""

import signal

import torch
import torch._dynamo  # The first optimizer step of a process would load it.
import torch.distributed.device_mesh
import torch.nn.parallel
import torch.utils.checkpoint
import torch.utils.data

import bench.worker
from collectors import profiler

__all__ = ["bench", "torch"]

profiler.warm()
# It asks a rank for its stacks, and would kill one that is too young to have been told so.
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
