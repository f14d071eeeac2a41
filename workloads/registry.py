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
    data_parallel.SingleSpec(),
    data_parallel.DdpSpec(),
    data_parallel.Zero1Spec(),
    fsdp.Zero2Spec(),
    fsdp.FsdpSpec(),
    fsdp.HsdpSpec(),
    deepspeed.DeepSpeedSpec(),
    parameter_server.ParameterServerSpec(),
    tensor_parallel.TensorParallelSpec(),
    pipeline_parallel.PipelineNaiveSpec(),
    pipeline_parallel.GpipeSpec(),
    pipeline_parallel.OneFOneBSpec(),
    pipeline_parallel.InterleavedSpec(),
    pipeline_parallel.ZeroBubbleSpec(),
    context_parallel.RingAttentionSpec(),
    context_parallel.UlyssesSpec(),
    three_d.ThreeDSpec(),
    probes.CollectivesSpec(),
    probes.AllReduceSpec(),
    probes.MatmulSpec(),
    probes.CopiesSpec(),
    probes.PairsSpec(),
)


def spec_of(name: str) -> StrategySpec:
    """Return the spec of a strategy or probe.

    Raises:
        KeyError: there is none of that name.
    """
    return {spec.name: spec for spec in SPECS}[name]
