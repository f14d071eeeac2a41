"""Specs of the pipelines `gpipe`, `one_f_one_b`, `interleaved`, `zero_bubble` and `pipeline_naive`.

They share options, refusals and costs, and differ in their schedules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from workloads.core.cuda_setup import cuda_model, cuda_peak_not_covered
from workloads.core.learning_rate import RECIPE
from workloads.core.precision_options import stream_bytes
from workloads.cost_models.absent import Absent
from workloads.cost_models.memory import paper_activation_bytes, paper_states
from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.schedules import (
    HALVED_BACKWARD,
    Pipeline,
    ScheduleName,
    actions,
    equal_layers,
    flops_balance,
    live_microbatches,
    why_not,
)
from workloads.cost_models.terms import States, Transfer
from workloads.options import (
    ACCUMULATE,
    DEFER_RECEIVES,
    HIGH_PRIORITY,
    MICROBATCHES,
    TRAINING_OPTIONS,
    checkpoint_every,
    deferring_refusals,
    local_batch,
    microbatch,
    microbatch_count,
    numbers_agreed,
    peak_not_covered,
    pipeline_message_notes,
    priority_axes,
    priority_refusals,
    tied_refusals,
    too_old_to_defer,
    training_refusals,
    unchunked_refusals,
)
from workloads.pipeline_parallel.cuda_peak import pipeline_cuda_peak
from workloads.pipeline_parallel.memory import (
    boundary_bytes,
    boundary_transfers,
    pipeline_step_peak,
    stage_states,
    stage_weights,
)
from workloads.spec import Needs, Option, Parity, Search, Setup, StrategySpec, nearest_multiples


def halved_backward_refusals(setup: Setup, schedule: ScheduleName) -> Iterator[str]:
    """Yield why a zero-bubble schedule cannot run this setup; no reason for schedules with whole backwards.

    A block's backward must split into the halves for inputs and for weights.
    """
    if schedule not in HALVED_BACKWARD:
        return
    options = setup.options
    if options["compile"] != "none":
        yield (
            f"option compile is {options['compile']} with a zero-bubble schedule; a compiled block's backward is one"
            " graph, and cannot be split into inputs and weights: use compile=none, or an interleaved schedule"
        )
    yield from unchunked_refusals(setup, "each half of a zero-bubble schedule's backward would recompute the logits")
    if options["checkpoint"] != "none":
        yield (
            f"option checkpoint is {options['checkpoint']} with a zero-bubble schedule; each half of a backward would"
            " recompute the block and free nothing, so the peak would grow: use checkpoint=none, or an"
            " interleaved schedule"
        )


BALANCE = Option(
    name="balance",
    default="layers",
    choices=("layers", "flops", "measured"),
    help="quantity that is equal among stages: blocks, FLOPs with the head's, or time measured on this machine",
    search=Search(values=("layers", "flops")),
)
STAGES = Option(name="stages", default=2, minimum=1, help="stages per rank", search=Search(values=(1, 2, 4)))

UNEQUAL_STAGES = Absent(
    reason="the papers' account of a stage assumes blocks that keep equally much, and checkpoint_every is above 1"
)

PIPELINE_OPTIONS = (
    *(option for option in TRAINING_OPTIONS if option is not ACCUMULATE),
    MICROBATCHES,
    BALANCE,
    HIGH_PRIORITY,
)


def counts(setup: Setup, stages: int) -> tuple[int, ...]:
    """Return the blocks of each stage as known before the run, with balance=flops in place of balance=measured."""
    if setup.options[BALANCE.name] == "layers":
        return equal_layers(setup.shape.layers, stages)
    return flops_balance(setup.shape, stages)


def stages_refusals(setup: Setup, pipeline: Pipeline, *, data_ranks: int = 1) -> list[str]:
    """Return why the model cannot be cut into these stages, or the schedule cannot run them."""
    sequences = setup.shape.batch // data_ranks
    layers, stages = setup.shape.layers, pipeline.stages
    reasons = [*priority_refusals(setup), *deferring_refusals(setup, pipeline.schedule)]
    if setup.options[BALANCE.name] == "measured" and checkpoint_every(setup) > 1:
        reasons.append(
            f"option balance is measured with checkpoint_every={checkpoint_every(setup)}; it times one block and takes"
            " all to be alike, but only some would be recomputed: use balance=layers or flops"
        )
    if stages > layers:
        reasons.append(
            f"layers is {layers} and {pipeline.ranks} ranks x {pipeline.stages_per_rank} stages make {stages} stages of"
            f" one block or more; use --layers {stages} or a multiple of it, or fewer ranks"
        )
    elif setup.options[BALANCE.name] == "layers" and layers % stages:
        fitting = nearest_multiples(layers, stages)
        reasons.append(
            f"layers is {layers}, which {stages} stages do not divide; --layers {fitting} would fit, or"
            " balance=flops, whose stages need not have equally many"
        )
    if setup.options[BALANCE.name] != "layers" and pipeline.stages_per_rank > 1:
        reasons.append(
            f"option balance is {setup.options[BALANCE.name]} with {pipeline.stages_per_rank} stages per rank; it"
            " balances stages, and may unbalance the ranks that hold them: use balance=layers, or 1 stage per rank"
        )
    reason = why_not(pipeline.schedule, pipeline.ranks, pipeline.stages_per_rank, pipeline.microbatches)
    return reasons if reason is None else [*reasons, f"{reason}{_fitting(pipeline, sequences)}"]


def _fitting(pipeline: Pipeline, sequences: int) -> str:
    """Return, as the end of a message, the microbatch counts that the schedule runs and that divide the sequences."""
    fitting = [
        str(count)
        for count in range(1, sequences + 1)
        if sequences % count == 0
        and why_not(pipeline.schedule, pipeline.ranks, pipeline.stages_per_rank, count) is None
    ]
    return f"; of {sequences} sequences that is microbatches={' or '.join(fitting)}" if fitting else ""


class PipelineSpec(StrategySpec):
    """Base of the specs whose ranks hold stages of the model; by default one pipeline over all ranks.

    only_schedule: order of a stage's microbatches; a strategy with several overrides `schedule`.
    """

    options = PIPELINE_OPTIONS
    needs = Needs(minimum_ranks=2)
    only_schedule: ScheduleName

    def schedule(self, setup: Setup) -> ScheduleName:
        """Return the order in which a stage's microbatches are computed."""
        return self.only_schedule

    def mesh(self, setup: Setup) -> dict[str, int]:
        return {"stage": setup.ranks}

    def pipeline(self, setup: Setup) -> Pipeline:
        """Return one of the pipelines, which are all alike; the setup's options set the stages of each rank."""
        axes = self.mesh(setup)
        return Pipeline(
            schedule=self.schedule(setup),
            ranks=axes["stage"],
            stages_per_rank=int(setup.options.get(STAGES.name, 1)),
            microbatches=microbatch_count(setup),
            boundary_bytes=boundary_bytes(
                setup.shape, local_batch(setup, axes.get("data", 1)), element_bytes=stream_bytes(setup)
            ),
        )

    def refusals(self, setup: Setup) -> list[str]:
        return [
            *training_refusals(setup, data_ranks=1),
            *tied_refusals(setup, "the first stage has the embedding and the last the head"),
            *stages_refusals(setup, self.pipeline(setup)),
            *halved_backward_refusals(setup, self.schedule(setup)),
        ]

    def missing_here(self, setup: Setup) -> list[str]:
        return [*super().missing_here(setup), *too_old_to_defer(setup)]

    def sends_messages(self, setup: Setup) -> bool:
        return True

    def high_priority_axes(self, setup: Setup) -> tuple[str, ...]:
        return priority_axes(setup, "stage")

    def transfers(self, setup: Setup) -> tuple[Transfer, ...]:
        return boundary_transfers(self.pipeline(setup), numbers=numbers_agreed(setup))

    def states(self, setup: Setup, rank: int) -> States:
        pipeline = self.pipeline(setup)
        blocks = counts(setup, pipeline.stages)
        by_stage = (stage_weights(setup.shape, blocks, stage) for stage in pipeline.stages_of(rank))
        return stage_states(weight for weights in by_stage for weight in weights)

    def states_not_covered(self, setup: Setup) -> Absent | None:
        if setup.options[BALANCE.name] != "measured":
            return None
        return Absent(reason="balance=measured splits the model by times that only the run measures")

    def paper_states(self, setup: Setup) -> States:
        return paper_states(setup.shape.parameters(), stage=0, data_ranks=1, model_ranks=setup.ranks)

    def paper_activations(self, setup: Setup) -> int | Absent:
        if checkpoint_every(setup) > 1:
            return UNEQUAL_STAGES
        # The stages of a rank together have layers / ranks blocks, whatever the schedule; see Narayanan et al. 2021.
        size, pipeline = microbatch(setup, 1), self.pipeline(setup)
        of_all = paper_activation_bytes(size.shape, size.sequences, size.checkpoint)
        return max(live_microbatches(actions(pipeline))) * of_all // pipeline.stages

    def peak(self, setup: Setup) -> Prediction | Absent:
        if setup.device == "cuda":
            return self._cuda_peak(setup)
        if (reason := self.states_not_covered(setup) or peak_not_covered(setup)) is not None:
            return reason
        pipeline = self.pipeline(setup)
        if pipeline.schedule in HALVED_BACKWARD:
            return Absent(reason="which tensors half of a backward keeps for the other half is autograd's choice")
        size, blocks = microbatch(setup, 1), counts(setup, pipeline.stages)
        ranks = (pipeline_step_peak(pipeline, size, blocks, rank) for rank in range(pipeline.ranks))
        return max(ranks, key=lambda peak: peak.total_bytes)

    def _cuda_peak(self, setup: Setup) -> Prediction | Absent:
        if (reason := self.states_not_covered(setup) or cuda_peak_not_covered(setup)) is not None:
            return reason
        pipeline = self.pipeline(setup)
        model, blocks = cuda_model(setup, 1), counts(setup, pipeline.stages)
        ranks = (
            pipeline_cuda_peak(pipeline, model, blocks, rank, states=self.states(setup, rank))
            for rank in range(pipeline.ranks)
        )
        return max(ranks, key=lambda peak: peak.total_bytes)

    def notes(self, setup: Setup) -> list[str]:
        return pipeline_message_notes(setup, self.schedule(setup))


class GpipeSpec(PipelineSpec):
    name = "gpipe"
    summary = "GPipe: one stage of the model per rank; all microbatches forward, then all backward"
    only_schedule = "gpipe"
    parity = Parity(
        variants=({}, {"microbatches": 8}, {"balance": "flops"}, {"checkpoint": "full"}, {"balance": "measured"})
    )


class InterleavedSpec(PipelineSpec):
    name = "interleaved"
    summary = "interleaved 1F1B: several smaller stages per rank, so that the pipeline fills sooner"
    only_schedule = "interleaved"
    options = (*PIPELINE_OPTIONS, DEFER_RECEIVES, STAGES)
    parity = Parity(
        variants=(
            {},
            {"microbatches": 8},
            {"checkpoint": "full"},
            {"checkpoint": "selective", "checkpoint_every": 3},
            {"loss_chunks": 2},
        )
    )


class OneFOneBSpec(PipelineSpec):
    """Spec of `one_f_one_b`."""

    name = "one_f_one_b"
    summary = "1F1B: as GPipe, but each backward starts as soon as it can, so that fewer microbatches are in flight"
    only_schedule = "one_f_one_b"
    parity = Parity(
        variants=({}, {"microbatches": 8}, {"balance": "flops"}, {"checkpoint": "full"}, RECIPE, {"loss_chunks": 3})
    )


class PipelineNaiveSpec(PipelineSpec):
    name = "pipeline_naive"
    summary = "naive model parallel: the batch passes from stage to stage, and one rank computes at a time"
    only_schedule = "naive"
    options = tuple(replace(option, default=1) if option is MICROBATCHES else option for option in PIPELINE_OPTIONS)
    parity = Parity(variants=({}, {"balance": "flops"}, {"checkpoint": "full"}))


VARIANT = Option(
    name="variant",
    default="interleaved",
    choices=("interleaved", "zbv"),
    help="placement of stages: round-robin over ranks, or forth and back in a V (ZBV, 2 stages per rank)",
    search=Search(values=("interleaved", "zbv")),
)


class ZeroBubbleSpec(PipelineSpec):
    """Spec of `zero_bubble`: backward is split into that of inputs, which other ranks wait for, and that of weights."""

    name = "zero_bubble"
    summary = "zero bubble: backward is split in two, and the half for weights fills the bubbles"
    options = (*PIPELINE_OPTIONS, STAGES, VARIANT)
    parity = Parity(variants=({}, {"variant": "zbv"}, {"microbatches": 8}, {"variant": "zbv", "microbatches": 8}))

    def schedule(self, setup: Setup) -> ScheduleName:
        return "zbv" if setup.options[VARIANT.name] == "zbv" else "interleaved_zero_bubble"


SPECS = (PipelineNaiveSpec(), GpipeSpec(), OneFOneBSpec(), InterleavedSpec(), ZeroBubbleSpec())
