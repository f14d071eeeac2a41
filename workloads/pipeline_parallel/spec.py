"""Specs of the pipelines `gpipe`, `one_f_one_b`, `interleaved`, `zero_bubble` and `pipeline_naive`.

`pipeline_spec` makes each spec from what is particular to its schedule; options, refusals and costs are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

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
from workloads.cost_models.terms import NotCovered, States, Transfer
from workloads.options import (
    ACCUMULATE,
    DEFER_RECEIVES,
    HIGH_PRIORITY,
    MICROBATCHES,
    TRAINING_OPTIONS,
    deferring_refusals,
    local_batch,
    microbatch,
    parts,
    peak_not_covered,
    pipeline_message_notes,
    priority_axes,
    priority_refusals,
    training_refusals,
)
from workloads.pipeline_parallel.memory import (
    boundary_bytes,
    boundary_transfers,
    pipeline_step_peak,
    stage_states,
    stage_weights,
)
from workloads.spec import Needs, Option, OptionValue, Parity, Setup, StrategySpec


def halved_backward_refusals(setup: Setup, schedule: ScheduleName) -> Iterator[str]:
    """Yield why a zero-bubble schedule cannot run this setup; nothing for schedules with whole backwards.

    A block's backward must split into the halves for inputs and for weights.
    """
    if schedule not in HALVED_BACKWARD:
        return
    options = setup.options
    if options["compile"] != "none":
        yield (
            f"option compile is {options['compile']} with a zero-bubble schedule; a compiled block's backward is one"
            " piece, and cannot be parted into inputs and weights: take compile=none, or an interleaved schedule"
        )
    if options["checkpoint"] != "none":
        yield (
            f"option checkpoint is {options['checkpoint']} with a zero-bubble schedule; each half of a backward would"
            " compute a block again and free nothing, so that more lived than without it: take checkpoint=none, or an"
            " interleaved schedule"
        )


def peak_of_stages(setup: Setup, pipeline: Pipeline, counts: Sequence[int]) -> Prediction | NotCovered:
    """Predict the peak of the rank that holds most. counts: blocks of each stage."""
    if (reason := peak_not_covered(setup)) is not None:
        return reason
    if pipeline.schedule in HALVED_BACKWARD:
        return NotCovered(reason="what half of a backward keeps for the other half is autograd's choice")
    size = microbatch(setup, 1)
    ranks = (pipeline_step_peak(pipeline, size, counts, rank) for rank in range(pipeline.ranks))
    return max(ranks, key=lambda peak: peak.total_bytes)


BALANCE = Option(
    name="balance",
    default="layers",
    choices=("layers", "flops", "measured"),
    help="what stages have alike: blocks, operations with the head's, or time as measured on this machine",
)
STAGES = Option(name="stages", default=2, minimum=1, help="stages of each rank")

PIPELINE_OPTIONS = (
    *(option for option in TRAINING_OPTIONS if option is not ACCUMULATE),
    MICROBATCHES,
    BALANCE,
    HIGH_PRIORITY,
)

Schedule = Callable[[Setup], ScheduleName]


def counts(setup: Setup, stages: int) -> tuple[int, ...]:
    """Return the blocks of each stage as far as known before the run; balance=measured is approximated by flops."""
    if setup.options[BALANCE.name] == "layers":
        return equal_layers(setup.shape.layers, stages)
    return flops_balance(setup.shape, stages)


def numbers_agreed(setup: Setup) -> int:
    """Return how many scalars a pipeline's ranks agree on in a step: the gradient norm, and in fp16 its overflow."""
    return (float(setup.options["clip"]) > 0) + (setup.precision == "fp16")


def stages_refusals(setup: Setup, pipeline: Pipeline, *, data_ranks: int = 1) -> list[str]:
    """Return why the model cannot be cut into these stages, or the schedule cannot run them."""
    sequences = setup.shape.batch // data_ranks
    layers, stages = setup.shape.layers, pipeline.stages
    reasons = [*priority_refusals(setup), *deferring_refusals(setup, pipeline.schedule)]
    if stages > layers:
        reasons.append(
            f"layers is {layers} and {pipeline.ranks} ranks x {pipeline.stages_per_rank} stages make {stages} stages of"
            f" one block or more; take --layers {stages} or a multiple of it, or fewer ranks"
        )
    elif setup.options[BALANCE.name] == "layers" and layers % stages:
        lower, upper = layers - layers % stages, layers - layers % stages + stages
        reasons.append(
            f"layers is {layers}, which {stages} stages do not divide; --layers {lower} or {upper} would fit, or"
            " balance=flops, whose stages need not have equally many"
        )
    if setup.options[BALANCE.name] != "layers" and pipeline.stages_per_rank > 1:
        reasons.append(
            f"option balance is {setup.options[BALANCE.name]} with {pipeline.stages_per_rank} stages per rank, which"
            " shortens the longest stage and may lengthen the longest rank; take balance=layers, or 1 stage per rank"
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


def pipeline_of(setup: Setup, schedule: ScheduleName, *, ranks: int, data_ranks: int = 1) -> Pipeline:
    """Return a pipeline of this many ranks, each with as many stages as the setup's options say."""
    return Pipeline(
        schedule=schedule,
        ranks=ranks,
        stages_per_rank=int(setup.options.get(STAGES.name, 1)),
        microbatches=parts(setup),
        boundary_bytes=boundary_bytes(setup.shape, local_batch(setup, data_ranks)),
    )


def pipeline_spec(
    *,
    name: str,
    summary: str,
    schedule: Schedule,
    options: tuple[Option, ...] = PIPELINE_OPTIONS,
    variants: tuple[Mapping[str, OptionValue], ...],
    more_refusals: Callable[[Setup], list[str]] = lambda setup: [],
) -> StrategySpec:
    """Return the spec of a pipeline over all ranks.

    variants: options of its parity test.
    """

    def pipeline(setup: Setup) -> Pipeline:
        return pipeline_of(setup, schedule(setup), ranks=setup.ranks)

    def refusals(setup: Setup) -> list[str]:
        return [
            *training_refusals(setup, data_ranks=1),
            *stages_refusals(setup, pipeline(setup)),
            *more_refusals(setup),
        ]

    def notes(setup: Setup) -> list[str]:
        return pipeline_message_notes(setup, schedule(setup))

    def states(setup: Setup, rank: int) -> States:
        whole = pipeline(setup)
        blocks = counts(setup, whole.stages)
        held = (stage_weights(setup.shape, blocks, stage) for stage in whole.stages_of(rank))
        return stage_states(weight for weights in held for weight in weights)

    def transfers(setup: Setup) -> tuple[Transfer, ...]:
        return boundary_transfers(pipeline(setup), numbers=numbers_agreed(setup))

    def paper(setup: Setup) -> States:
        return paper_states(setup.shape.parameters(), stage=0, data_ranks=1, model_ranks=setup.ranks)

    def paper_activations(setup: Setup) -> int:
        # The stages of a rank together have layers / ranks blocks, whatever the schedule; see Narayanan et al. 2021.
        size, whole = microbatch(setup, 1), pipeline(setup)
        of_all = paper_activation_bytes(size.shape, size.sequences, size.checkpoint)
        return max(live_microbatches(actions(whole))) * of_all // whole.stages

    def peak(setup: Setup) -> Prediction | NotCovered:
        whole = pipeline(setup)
        return measured_stages(setup) or peak_of_stages(setup, whole, counts(setup, whole.stages))

    return StrategySpec(
        name=name,
        entry="workloads.pipeline_parallel.strategy:build",
        kind="training",
        summary=summary,
        version=1,
        options=options,
        needs=Needs(minimum_ranks=2),
        parity=Parity(kind="exact", variants=variants),
        mesh=lambda setup: {"stage": setup.ranks},
        refusals=refusals,
        sends_messages=lambda setup: True,
        high_priority_axes=lambda setup: priority_axes(setup, "stage"),
        transfers=transfers,
        notes=notes,
        states=states,
        states_not_covered=measured_stages,
        paper_states=paper,
        paper_activations=paper_activations,
        pipeline=pipeline,
        peak=peak,
    )


def measured_stages(setup: Setup) -> NotCovered | None:
    """Return why a stage's states and peak are known only in the run; None where they are known before."""
    if setup.options[BALANCE.name] != "measured":
        return None
    return NotCovered(reason="balance=measured cuts the model by what this machine measured, which only the run knows")


def with_default(option: Option, default: OptionValue) -> Option:
    """Return the option with another default."""
    return replace(option, default=default)


GPIPE_CARD = pipeline_spec(
    name="gpipe",
    summary="GPipe: a stage of the model on each rank; all microbatches forward, then all backward",
    schedule=lambda setup: "gpipe",
    variants=({}, {"microbatches": 8}, {"balance": "flops"}, {"checkpoint": "full"}, {"balance": "measured"}),
)


INTERLEAVED_CARD = pipeline_spec(
    name="interleaved",
    summary="interleaved 1F1B: several smaller stages on each rank, so that the pipeline fills sooner",
    schedule=lambda setup: "interleaved",
    options=(*PIPELINE_OPTIONS, DEFER_RECEIVES, STAGES),
    variants=({}, {"microbatches": 8}, {"checkpoint": "full"}),
)


ONE_F_ONE_B_CARD = pipeline_spec(
    name="one_f_one_b",
    summary="1F1B: as GPipe, but each backward begins as soon as it can, so that fewer microbatches live at once",
    schedule=lambda setup: "one_f_one_b",
    variants=({}, {"microbatches": 8}, {"balance": "flops"}, {"checkpoint": "full"}),
)


PIPELINE_NAIVE_CARD = pipeline_spec(
    name="pipeline_naive",
    summary="naive model parallel: the whole batch goes from stage to stage, one rank computes at a time",
    schedule=lambda setup: "naive",
    options=tuple(with_default(option, 1) if option is MICROBATCHES else option for option in PIPELINE_OPTIONS),
    variants=({}, {"balance": "flops"}, {"checkpoint": "full"}),
)


# zero_bubble: backward is split into that of inputs, which other ranks wait for, and that of weights.

VARIANT = Option(
    name="variant",
    default="interleaved",
    choices=("interleaved", "zbv"),
    help="order of a rank's stages: in turn, or there and back (ZBV, with 2 stages)",
)


def _schedule(setup: Setup) -> ScheduleName:
    return "zbv" if setup.options[VARIANT.name] == "zbv" else "interleaved_zero_bubble"


def _refusals(setup: Setup) -> list[str]:
    return list(halved_backward_refusals(setup, _schedule(setup)))


ZERO_BUBBLE_CARD = pipeline_spec(
    name="zero_bubble",
    summary="zero bubble: backward of weights fills the gaps that waiting for backward of inputs leaves",
    schedule=_schedule,
    options=(*PIPELINE_OPTIONS, STAGES, VARIANT),
    variants=({}, {"variant": "zbv"}, {"microbatches": 8}, {"variant": "zbv", "microbatches": 8}),
    more_refusals=_refusals,
)
