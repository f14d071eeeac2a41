"""Registry of all strategies and probes: one line for each spec.

Imports no torch; a rank loads the module that the spec's `entry` names.
"""

from __future__ import annotations

from workloads.context_parallel import spec as context_parallel
from workloads.data_parallel import spec as data_parallel
from workloads.deepspeed import spec as deepspeed
from workloads.fsdp import spec as fsdp
from workloads.parameter_server import spec as parameter_server
from workloads.pipeline_parallel import spec as pipeline_parallel
from workloads.probes import spec as probes
from workloads.spec import StrategySpec
from workloads.tensor_parallel import spec as tensor_parallel
from workloads.three_d import spec as three_d

SPECS: tuple[StrategySpec, ...] = (
    data_parallel.SINGLE_CARD,
    data_parallel.DDP_CARD,
    data_parallel.ZERO1_CARD,
    fsdp.ZERO2_CARD,
    fsdp.FSDP_CARD,
    fsdp.HSDP_CARD,
    deepspeed.DEEPSPEED_CARD,
    parameter_server.PARAMETER_SERVER_CARD,
    tensor_parallel.TENSOR_PARALLEL_CARD,
    pipeline_parallel.PIPELINE_NAIVE_CARD,
    pipeline_parallel.GPIPE_CARD,
    pipeline_parallel.ONE_F_ONE_B_CARD,
    pipeline_parallel.INTERLEAVED_CARD,
    pipeline_parallel.ZERO_BUBBLE_CARD,
    context_parallel.RING_ATTENTION_CARD,
    context_parallel.ULYSSES_CARD,
    three_d.THREE_D_CARD,
    probes.COLLECTIVES_CARD,
    probes.ALL_REDUCE_CARD,
    probes.MATMUL_CARD,
    probes.COPIES_CARD,
)


def spec_of(name: str) -> StrategySpec:
    """Return the spec of a strategy or probe.

    Raises:
        KeyError: there is none of that name.
    """
    return {spec.name: spec for spec in SPECS}[name]
