"""What the forkserver loads once, so that a rank starts in a tenth of a second; touches no device, starts no thread."""

import torch
import torch._dynamo  # The first optimizer step of a process would load it.
import torch.distributed.device_mesh
import torch.nn.parallel
import torch.utils.checkpoint
import torch.utils.data

import bench.worker

__all__ = ["bench", "torch"]
