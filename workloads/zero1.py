"""The strategy `zero1`: as `ddp`, but each rank updates only some weights, and holds their optimizer states alone."""

from __future__ import annotations

import warnings

from torch.distributed.device_mesh import DeviceMesh
from torch.optim import AdamW

from workloads.cards.card import Setup
from workloads.parts.replica import replicate
from workloads.parts.training import Trainer, adamw_settings, make_model
from workloads.workload import Phase, Workload

with warnings.catch_warnings():
    # Beside this optimizer the package has some that torch 2.13 compiles on import, by a function that it deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch.distributed.optim import ZeroRedundancyOptimizer


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """DistributedDataParallel averages gradients; each rank then sends the weights that it has updated to all."""
    model, group = make_model(setup), mesh.get_group("data")
    replica = replicate(setup, model, group)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(),
        optimizer_class=AdamW,
        process_group=group,
        # A rank's weights lie end to end and are sent in one broadcast, instead of one for each of them.
        parameters_as_bucket_view=True,
        **adamw_settings(setup),
    )
    # The states are those of the optimizer within; without this, whoever reads the outer one's finds none.
    optimizer.state = optimizer.optim.state
    return Trainer(setup, replica, phase, no_sync=replica.no_sync, optimizer=optimizer)
