"""Registry of all strategies and probes: one line for each spec.

Imports no torch; a rank loads the module that an entry names. Nothing in `workloads` imports the registry.
"""

from __future__ import annotations

from workloads.context_parallel import spec as context_parallel
from workloads.data_parallel import spec as data_parallel
from workloads.deepspeed import spec as deepspeed
from workloads.fsdp import spec as fsdp
from workloads.parameter_server import spec as parameter_server
from workloads.pipeline_parallel import spec as pipeline_parallel
from workloads.probes import spec as probes
from workloads.spec import StrategySpec, WatchedSpec
from workloads.tensor_parallel import spec as tensor_parallel
from workloads.three_d import spec as three_d

ENTRIES: tuple[tuple[StrategySpec, str], ...] = (
    (data_parallel.SingleSpec(), "workloads.data_parallel.strategy:build_single"),
    (data_parallel.DdpSpec(), "workloads.data_parallel.strategy:build_ddp"),
    (data_parallel.Zero1Spec(), "workloads.data_parallel.strategy:build_zero1"),
    (fsdp.Zero2Spec(), "workloads.fsdp.strategy:build"),
    (fsdp.FsdpSpec(), "workloads.fsdp.strategy:build"),
    (fsdp.HsdpSpec(), "workloads.fsdp.strategy:build"),
    (deepspeed.DeepSpeedSpec(), "workloads.deepspeed.strategy:build"),
    (parameter_server.ParameterServerSpec(), "workloads.parameter_server.strategy:build"),
    (tensor_parallel.TensorParallelSpec(), "workloads.tensor_parallel.strategy:build"),
    (pipeline_parallel.PipelineNaiveSpec(), "workloads.pipeline_parallel.strategy:build"),
    (pipeline_parallel.GpipeSpec(), "workloads.pipeline_parallel.strategy:build"),
    (pipeline_parallel.OneFOneBSpec(), "workloads.pipeline_parallel.strategy:build"),
    (pipeline_parallel.InterleavedSpec(), "workloads.pipeline_parallel.strategy:build"),
    (pipeline_parallel.ZeroBubbleSpec(), "workloads.pipeline_parallel.strategy:build"),
    (context_parallel.RingAttentionSpec(), "workloads.context_parallel.ring_attention:build"),
    (context_parallel.UlyssesSpec(), "workloads.context_parallel.strategy:build"),
    (three_d.ThreeDSpec(), "workloads.three_d.strategy:build"),
    (probes.CollectivesSpec(), "workloads.probes.collectives:probe"),
    (probes.AllReduceSpec(), "workloads.probes.all_reduce:probe"),
    (probes.MatmulSpec(), "workloads.probes.device:probe_matmul"),
    (probes.CopiesSpec(), "workloads.probes.device:probe_copies"),
    (probes.PairsSpec(), "workloads.probes.collectives:probe_pairs"),
)
"""Each spec, with the "module:name" of what a rank runs: a `Build` function for training, a `Probe` function for a
probe. It is a string because that module loads torch."""

SPECS = tuple(spec for spec, _ in ENTRIES)
"""All strategies and probes that can be run by name."""
HIDDEN: tuple[StrategySpec, ...] = (WatchedSpec(),)
"""Specs of runs that the history holds, but that no list, suite or `observatory choose` offers."""
_BY_NAME = {spec.name: spec for spec in (*SPECS, *HIDDEN)}


def spec_of(name: str) -> StrategySpec:
    """Return the spec of a strategy or probe, also of a hidden one.

    Raises:
        KeyError: there is none of that name.
    """
    return _BY_NAME[name]


def is_known(name: str) -> bool:
    """Whether this version has a spec of that name, hidden or not; runs of unknown specs are shown as stored."""
    return name in _BY_NAME


def entry_of(name: str) -> str:
    """Return the "module:name" of what a rank runs of a strategy or probe; KeyError if there is none of that name."""
    return {spec.name: entry for spec, entry in ENTRIES}[name]
