"""Expected time of one step of any strategy: given compute time, transfers by level, and a pipeline's bubble.

A rank computes its equal share. Without a pipeline, each transfer hides behind the phase that its strategy allows. A
pipeline is simulated action by action: a stage takes as long as its blocks, head and collectives, and messages between
stages delay the stages that wait for them.
Not included: data loading, and the host but for the part of computing that its caller knows.
Not covered: messages that delay each other; a rank that holds more of a sequence's work than others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from workloads.cost_models.absent import Absent
from workloads.cost_models.interconnect import (
    Interconnect,
    mesh_axes,
    message_time_s,
    transfer_axis,
    transfer_time_s,
)
from workloads.cost_models.memory import recomputed_count
from workloads.cost_models.schedules import HALVED_BACKWARD, ActionKind, Pipeline
from workloads.cost_models.step_time import ComputeTime, StepTime, step_time
from workloads.cost_models.terms import Transfer
from workloads.options import checkpoint_every, rerun_ratio
from workloads.pipeline_parallel.makespan import KindOfStage, StepTimes, makespan_s
from workloads.pipeline_parallel.spec import counts
from workloads.spec import Setup, StrategySpec


def step_of(
    setup: Setup,
    spec: StrategySpec,
    *,
    compute: ComputeTime,
    interconnect: Interconnect | Absent,
    hiding: float = 1.0,
) -> StepTime | Absent:
    """Return the step of a setup in which a rank's equal share takes this time, or the input that is missing.

    spec: of the setup's strategy. compute: of a mean rank, including what backward recomputes.
    interconnect: joins the ranks, or why it is unknown; only strategies that communicate need it, and only the levels
    that their axes cross.
    hiding: see `queue_exposed_s`; without effect on a pipeline, which is simulated.

    Raises:
        ValueError: the spec refuses the setup, or the interconnect has fewer ranks.
    """
    transfers, pipeline = spec.transfers(setup), spec.pipeline(setup)
    if isinstance(interconnect, Absent):
        if transfers:
            return interconnect
        return StepTime(compute=compute, communication_s=0.0, exposed_s=0.0)
    if (missing := missing_link(transfers, spec.mesh(setup), interconnect)) is not None:
        return missing
    if pipeline is None:
        axes = spec.mesh(setup)
        return step_time(compute, transfers, axes=axes, interconnect=interconnect, backend=setup.backend, hiding=hiding)
    return _Stages(setup=setup, spec=spec, pipeline=pipeline, compute=compute, interconnect=interconnect).step()


def missing_link(transfers: Iterable[Transfer], axes: Mapping[str, int], interconnect: Interconnect) -> Absent | None:
    """Return why the link of some transfer is unknown; None if all are known. axes: as a spec's mesh gives them."""
    for transfer in transfers:
        links = interconnect.links(transfer_axis(transfer, axes), transfer.collective)
        if isinstance(links, Absent):
            return links
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stages:
    """A pipeline of stages, and what its simulation needs."""

    setup: Setup
    spec: StrategySpec
    pipeline: Pipeline
    compute: ComputeTime
    interconnect: Interconnect

    def step(self) -> StepTime:
        """Simulate the step twice, without communication and with it: the difference is exposed."""
        computing_s = self._computing_s()
        nothing_s = dict.fromkeys(range(self.pipeline.stages), 0.0)
        alone = StepTimes(
            computing_s=computing_s,
            inside_s=dict.fromkeys(computing_s, 0.0),
            first_s=nothing_s,
            last_s=nothing_s,
            handed_on_s=dict.fromkeys(computing_s, 0.0),
        )
        alone_s = makespan_s(self.pipeline, alone)
        together_s = makespan_s(self.pipeline, self._with_transfers(computing_s))
        update_s = self._total_s(self.spec.update_transfers(self.setup))
        return StepTime(
            compute=self.compute,
            communication_s=self._total_s(self.spec.transfers(self.setup)),
            exposed_s=together_s - alone_s + update_s,
            bubble_s=alone_s - self.compute.forward_s - self.compute.backward_s,
        )

    def _total_s(self, transfers: Iterable[Transfer]) -> float:
        axes = self.spec.mesh(self.setup)
        return sum(transfer_time_s(each, axes, self.interconnect, self.setup.backend) for each in transfers)

    def _computing_s(self) -> dict[tuple[int, ActionKind], float]:
        """Return the time of each action of a stage for one microbatch; their sum is the compute time of all ranks.

        Blocks take equally long, the head as long as its FLOPs, and the embedding no time. The host's time belongs to
        blocks alone. Where backward is halved,
        each half takes as long as forward; the first stage passes on no gradient of its input, so torch computes all of
        its backward with the weights.
        """
        shape, pipeline = self.setup.shape, self.pipeline
        blocks = counts(self.setup, pipeline.stages)
        head = 6 * shape.width * shape.vocabulary * shape.tokens / shape.flops_per_step()
        again_s = rerun_ratio(self.setup) * self.compute.forward_s
        # Of forward; backward has as much, and once more where it repeats forward.
        host_s = self.compute.host_s / (2 + rerun_ratio(self.setup))
        each = pipeline.ranks / pipeline.microbatches  # Share of a mean rank's time for one microbatch of all stages.
        every = checkpoint_every(self.setup)
        times: dict[tuple[int, ActionKind], float] = {}
        for stage, count in enumerate(blocks):
            share = (1 - head) * count / shape.layers + (head if stage == pipeline.stages - 1 else 0.0)
            first = sum(blocks[:stage])
            rerun = recomputed_count(range(first, first + count), every=every) if again_s else 0
            rerun_share = rerun / max(1, recomputed_count(range(shape.layers), every=every))
            own_host_s = host_s * count / shape.layers
            backward_s = share * (self.compute.backward_s - again_s - host_s) + own_host_s + rerun_share * again_s
            backward_s *= each
            times[stage, "forward"] = each * (share * (self.compute.forward_s - host_s) + own_host_s)
            if pipeline.schedule not in HALVED_BACKWARD:
                times[stage, "backward"] = backward_s
                continue
            times[stage, "input_backward"] = 0.0 if stage == 0 else backward_s / 2
            times[stage, "weight_backward"] = backward_s if stage == 0 else backward_s / 2
        return times

    def _with_transfers(self, computing_s: Mapping[KindOfStage, float]) -> StepTimes:
        """Return the times of actions, including the collectives within them, and of the messages between them."""
        transfers = [self.spec.stage_transfers(self.setup, stage) for stage in range(self.pipeline.stages)]
        each_s = [self._total_s(of_stage.each) / self.pipeline.microbatches / 2 for of_stage in transfers]
        return StepTimes(
            computing_s=computing_s,
            inside_s={
                (stage, kind): 0.0 if kind == "weight_backward" else each_s[stage] for stage, kind in computing_s
            },
            first_s={stage: self._total_s(of_stage.first) for stage, of_stage in enumerate(transfers)},
            last_s={stage: self._total_s(of_stage.last) for stage, of_stage in enumerate(transfers)},
            handed_on_s={(stage, kind): self._message_s(stage, kind) for stage, kind in computing_s},
        )

    def _message_s(self, stage: int, kind: ActionKind) -> float:
        """Return the time of the message that follows an action; 0 if it sends nothing, or only to its own rank."""
        to = stage + 1 if kind == "forward" else stage - 1
        if kind == "weight_backward" or not 0 <= to < self.pipeline.stages:
            return 0.0
        return _boundary_s(self.setup, self.spec, self.pipeline, self.interconnect, stage, to)


def slowest_message_s(setup: Setup, spec: StrategySpec, interconnect: Interconnect) -> float | Absent:
    """Return the time of a message between the two neighbouring stages that are farthest apart, or the missing link.

    Raises:
        ValueError: the strategy has no pipeline.
    """
    pipeline = spec.pipeline(setup)
    if pipeline is None:
        raise ValueError(f"{setup.strategy} has no pipeline, whose stages send messages")
    links = interconnect.links(mesh_axes(spec.mesh(setup))["stage"], "send")
    if isinstance(links, Absent):
        return links
    ends = [(stage, stage + 1) for stage in range(pipeline.stages - 1)]
    return max(
        _boundary_s(setup, spec, pipeline, interconnect, *pair) for forth in ends for pair in (forth, forth[::-1])
    )


def _boundary_s(
    setup: Setup, spec: StrategySpec, pipeline: Pipeline, interconnect: Interconnect, stage: int, to: int
) -> float:
    """Return the time in which a stage sends a microbatch to a neighbour, while all pipelines do so."""
    return message_time_s(
        pipeline.boundary_bytes,
        mesh_axes(spec.mesh(setup))["stage"],
        interconnect,
        source=pipeline.rank_of(stage),
        destination=pipeline.rank_of(to),
    )
