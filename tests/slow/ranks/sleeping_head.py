"""The textbook's pipeline: equal layers, unequal work. Blocks sleep, and the head sleeps as long as six of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

from collectors.sample_log import TimedActions
from tests.slow.ranks.priority import go_first
from tests.slow.ranks.sleeping_stages import Bed, put_to_sleep, time_steps
from tests.workloads.training.setups import SmallSetup, small_setup
from tests.workloads.training.training_runs import Ready, no_phase
from workloads.core.data import make_batches
from workloads.core.mesh import make_mesh
from workloads.core.trainer import make_model
from workloads.cost_models.schedules import Pipeline
from workloads.cost_models.shape import Shape
from workloads.pipeline_parallel.simulator import StageTimes
from workloads.pipeline_parallel.stages import PipelineTrainer, StageModel, cut
from workloads.pipeline_parallel.strategy import balance_by_time, divide
from workloads.registry import spec_of
from workloads.spec import OptionValue

RANKS = 2
BLOCK_S = 0.02
HEAD_BLOCKS = 6
SHAPE = Shape(layers=8, width=8, heads=2, kv_heads=1, mlp_width=8, vocabulary=8, sequence=4, batch=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Balanced:
    """How the option `balance` cut the model, blocks by stage, and what the rank then did."""

    blocks: tuple[int, ...]
    performed: list[TimedActions]


def setup_of(balance: str) -> SmallSetup:
    """A sequence a microbatch."""
    options: dict[str, OptionValue] = {"balance": balance, "microbatches": SHAPE.batch}
    return small_setup("gpipe", ranks=RANKS, shape=SHAPE, options=options)


def pipeline_of(balance: str) -> Pipeline:
    """What the spec says of it."""
    pipeline = spec_of("gpipe").pipeline(setup_of(balance))
    assert pipeline is not None
    return pipeline


def slept_s(blocks: tuple[int, ...]) -> StageTimes:
    """What stages of so many blocks sleep for a microbatch."""
    work = [*blocks[:-1], blocks[-1] + HEAD_BLOCKS]
    times: StageTimes = {
        **{(stage, "forward"): one * BLOCK_S for stage, one in enumerate(work)},
        **{(stage, "backward"): 2 * one * BLOCK_S for stage, one in enumerate(work)},
    }
    return times


def perform_balanced(balances: list[str]) -> list[Balanced]:
    """Each way to balance, as one of the ranks."""
    go_first()
    return [_perform(balance) for balance in balances]


def _perform(balance: str) -> Balanced:
    """As the strategy is built, but that model and head go to sleep before anybody measures them."""
    setup, pipeline, spec = setup_of(balance), pipeline_of(balance), spec_of("gpipe")
    mesh = make_mesh(spec.mesh(setup), setup.device)
    model = make_model(setup)
    for block in model.blocks:
        put_to_sleep(block, Bed(BLOCK_S))
    put_to_sleep(model.head, Bed(HEAD_BLOCKS * BLOCK_S))
    is_measured = setup.options["balance"] == "measured"
    blocks = balance_by_time(setup, model, pipeline, 1) if is_measured else divide(setup, pipeline, 1)
    parts = cut(SHAPE.layers, blocks)
    stages = {stage: StageModel(model, parts[stage]) for stage in pipeline.stages_of(dist.get_rank())}
    trainer = PipelineTrainer(
        setup,
        stages,
        no_phase,
        pipeline=pipeline,
        stream=(1, SHAPE.sequence, SHAPE.width),
        group=mesh.get_group("stage"),
    )
    ready = Ready(workload=trainer, batches=make_batches(setup, spec.data_share(setup, dist.get_rank())))
    ready.step()
    return Balanced(blocks=blocks, performed=time_steps(ready))
