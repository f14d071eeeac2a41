"""The model whole on each rank, its gradients averaged bucket by bucket while backward runs."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workloads.cards.card import Setup


def replicate(
    setup: Setup,
    model: nn.Module,
    group: dist.ProcessGroup,
    *,
    find_unused_parameters: bool = False,
    static_graph: bool = False,
) -> DistributedDataParallel:
    """The model in DistributedDataParallel, its buckets as large as the setup's option says."""
    replica = DistributedDataParallel(
        model,
        device_ids=[torch.cuda.current_device()] if setup.device == "cuda" else None,
        process_group=group,
        bucket_cap_mb=float(setup.options["bucket_mb"]),
        # Gradients live in the buckets: without it they would be held twice, and copied.
        gradient_as_bucket_view=True,
        find_unused_parameters=find_unused_parameters,
        static_graph=static_graph,
    )
    # The only buffers are tables that never change, and each forward would send them. The argument that says so has
    # another name in torch 2.13 than in 2.11; the attribute has not.
    replica.broadcast_buffers = False
    return replica
