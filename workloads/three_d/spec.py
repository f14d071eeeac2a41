"""Spec of `three_d`: replicas of a pipeline whose stages are divided by tensors, on one device mesh.

Placement follows the interconnect. Ranks of the axis `tensor` communicate in every block and are neighbours; stages
hand on one tensor per microbatch; replicas communicate once a step, and are farthest apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from workloads.cost_models.memory import Checkpoint, paper_states
from workloads.cost_models.schedules import HALVED_BACKWARD, Pipeline, ScheduleName, actions, live_microbatches
from workloads.cost_models.terms import NotCovered, States, Transfer
from workloads.options import (
    BUCKET_MB,
    DEFER_RECEIVES,
    GATHERED_IN_GRAPHS,
    graph_refusals,
    local_batch,
    parts,
    pipeline_message_notes,
    priority_axes,
    training_refusals,
)
from workloads.pipeline_parallel.spec import (
    PIPELINE_OPTIONS,
    STAGES,
    counts,
    halved_backward_refusals,
    measured_stages,
    numbers_agreed,
    stages_refusals,
)
from workloads.pipeline_parallel.spec import pipeline_of as pipeline_of_ranks
from workloads.spec import ELEMENT_BYTES, Needs, Option, Parity, Setup, StrategySpec
from workloads.tensor_parallel.cost_model import TensorTraffic, paper_activation_bytes
from workloads.tensor_parallel.spec import SEQUENCE_PARALLEL, compile_refusals, division_refusals
from workloads.three_d.cost_model import MeshStages

PIPELINE_RANKS = Option(name="pipeline_ranks", default=2, minimum=2, help="ranks that the model's layers are cut over")
TENSOR_RANKS = Option(
    name="tensor_ranks", default=2, minimum=1, help="neighbouring ranks that divide each product, such as a node's"
)
DATA_AXIS = Option(
    name="data_axis",
    default="ddp",
    choices=("ddp", "fsdp"),
    help="what replicas of a stage do: average gradients when all are there, or divide all that the stage holds",
)
SCHEDULE = Option(
    name="schedule",
    default="one_f_one_b",
    choices=("gpipe", "one_f_one_b", "interleaved", "interleaved_zero_bubble", "zbv"),
    help="order of a stage's microbatches",
)
GATHERED_STAGES = 3
"""Number of stages per rank whose weights torch's schedules keep gathered at a time."""
LISTED_RANKS = 16
"""For a larger mesh the notes show the rule in place of each rank's coordinates."""


def pipeline_of(setup: Setup) -> Pipeline:
    """Return one of the pipelines, which are all alike."""
    axes = _mesh(setup)
    pipeline = pipeline_of_ranks(setup, _schedule(setup), ranks=axes["stage"], data_ranks=axes["data"])
    return replace(pipeline, boundary_bytes=pipeline.boundary_bytes // _stream_ranks(setup))


def _stream_ranks(setup: Setup) -> int:
    """Return the number of ranks that the residual stream is divided over."""
    return int(setup.options[TENSOR_RANKS.name]) if setup.options[SEQUENCE_PARALLEL.name] else 1


def _schedule(setup: Setup) -> ScheduleName:
    schedule: ScheduleName = setup.options[SCHEDULE.name]  # type: ignore[assignment]  # The spec allows no other value.
    return schedule


def _replica_ranks(setup: Setup) -> int:
    return int(setup.options[PIPELINE_RANKS.name]) * int(setup.options[TENSOR_RANKS.name])


def _mesh(setup: Setup) -> dict[str, int]:
    return {
        "data": setup.ranks // _replica_ranks(setup),
        "stage": int(setup.options[PIPELINE_RANKS.name]),
        "tensor": int(setup.options[TENSOR_RANKS.name]),
    }


def _refusals(setup: Setup) -> list[str]:
    if reasons := list(_mesh_refusals(setup)):
        return reasons
    data_ranks = _mesh(setup)["data"]
    tensor_ranks = int(setup.options[TENSOR_RANKS.name])
    return [
        *training_refusals(setup, data_ranks=data_ranks),
        *stages_refusals(setup, pipeline_of(setup), data_ranks=data_ranks),
        *division_refusals(setup, ranks=tensor_ranks, option=TENSOR_RANKS.name),
        *compile_refusals(setup, ranks=tensor_ranks),
        *_combination_refusals(setup),
    ]


def _mesh_refusals(setup: Setup) -> Iterator[str]:
    replica = _replica_ranks(setup)
    if setup.ranks % replica == 0:
        return
    lower = setup.ranks - setup.ranks % replica
    fitting = f"{lower} or {lower + replica}" if lower else str(replica)
    yield (
        f"pipeline_ranks {setup.options[PIPELINE_RANKS.name]} x tensor_ranks {setup.options[TENSOR_RANKS.name]} make"
        f" replicas of {replica} ranks, which cannot share {setup.ranks} ranks; --ranks {fitting} would fit"
    )


def _combination_refusals(setup: Setup) -> Iterator[str]:
    options, schedule = setup.options, _schedule(setup)
    yield from halved_backward_refusals(setup, schedule)
    if options[DATA_AXIS.name] != "fsdp":
        return
    yield from graph_refusals(setup, GATHERED_IN_GRAPHS)
    if _mesh(setup)["data"] == 1:
        yield (
            f"option data_axis is fsdp with one replica of {_replica_ranks(setup)} ranks, which has nobody to share"
            f" with; take --ranks {2 * _replica_ranks(setup)}, smaller pipeline_ranks or tensor_ranks, or data_axis=ddp"
        )
    if schedule in HALVED_BACKWARD:
        yield (
            f"option data_axis is fsdp with schedule={schedule}, which parts backward into inputs and weights: where"
            " FSDP2 divides weights again in between, gradients are wrong without a word (torch 2.13); take"
            " data_axis=ddp, or schedule=interleaved"
        )
    elif int(options[STAGES.name]) > GATHERED_STAGES:
        yield (
            f"option stages is {options[STAGES.name]} with data_axis=fsdp; torch's schedules keep the weights of"
            f" {GATHERED_STAGES} stages of a rank gathered, and would gather the others for each microbatch anew: take"
            f" stages={GATHERED_STAGES} or fewer, or data_axis=ddp"
        )


def _law(setup: Setup) -> MeshStages:
    axes, options = _mesh(setup), setup.options
    pipeline, numbers = pipeline_of(setup), numbers_agreed(setup)
    is_divided = options[DATA_AXIS.name] == "fsdp" and axes["data"] > 1
    return MeshStages(
        shape=setup.shape,
        pipeline=pipeline,
        counts=counts(setup, pipeline.stages),
        data_ranks=axes["data"],
        traffic=TensorTraffic(
            shape=setup.shape,
            ranks=axes["tensor"],
            sequences=local_batch(setup, axes["data"]),
            microbatches=parts(setup),
            product_bytes=ELEMENT_BYTES[setup.precision],
            is_stream_divided=bool(options[SEQUENCE_PARALLEL.name]),
            is_loss_divided=False,
            is_recomputed=options["checkpoint"] != "none",
            numbers=numbers,
            has_all_to_all=setup.device == "cuda",
        ),
        bucket_bytes=None if is_divided else int(float(options[BUCKET_MB.name]) * 2**20),
        numbers=numbers,
    )


def _transfers(setup: Setup) -> tuple[Transfer, ...]:
    return _law(setup).transfers()


def _states(setup: Setup, rank: int) -> States:
    return _law(setup).states(rank)


def _paper_states(setup: Setup) -> States:
    return paper_states(
        setup.shape.parameters(),
        stage=2 if setup.options[DATA_AXIS.name] == "fsdp" else 0,
        data_ranks=_mesh(setup)["data"],
        model_ranks=_replica_ranks(setup),
    )


def _paper_activations(setup: Setup) -> int:
    checkpoint: Checkpoint = setup.options["checkpoint"]  # type: ignore[assignment]  # The spec allows no other value.
    axes, pipeline = _mesh(setup), pipeline_of(setup)
    of_all = paper_activation_bytes(
        setup.shape,
        local_batch(setup, axes["data"]),
        checkpoint,
        ranks=axes["tensor"],
        is_stream_divided=bool(setup.options[SEQUENCE_PARALLEL.name]),
    )
    return max(live_microbatches(actions(pipeline))) * of_all // pipeline.stages


def _peak(setup: Setup) -> NotCovered:
    return NotCovered(
        reason="the law of live tensors knows neither stages that take turns nor products that are divided"
    )


def _notes(setup: Setup) -> list[str]:
    axes = _mesh(setup)
    notes = [_places(axes), *pipeline_message_notes(setup, _schedule(setup))]
    inside = [name for name in ("tensor", "data") if axes[name] > 1 and (name == "tensor" or _is_divided(setup))]
    if inside:
        notes.append(
            f"collectives over the axis {' and '.join(inside)} run inside of stages: their actions, and so what"
            " is busy, hold the waits for these peers"
        )
    return notes


def _is_divided(setup: Setup) -> bool:
    return setup.options[DATA_AXIS.name] == "fsdp"


def _places(axes: Mapping[str, int]) -> str:
    """Return a note on which ranks are where in the mesh."""
    mesh = " x ".join(f"{name} {size}" for name, size in axes.items())
    if axes["data"] * axes["stage"] * axes["tensor"] > LISTED_RANKS:
        number = f"(replica x {axes['stage']} + pipeline rank) x {axes['tensor']} + tensor rank"
        return f"mesh {mesh}, tensor innermost: rank {number}"
    replicas = (
        f"replica {data}: " + ", ".join(_place(axes, data, stage) for stage in range(axes["stage"]))
        for data in range(axes["data"])
    )
    return f"mesh {mesh}, tensor innermost; {'; '.join(replicas)}"


def _place(axes: Mapping[str, int], data: int, stage: int) -> str:
    first = (data * axes["stage"] + stage) * axes["tensor"]
    ranks = f"rank {first}" if axes["tensor"] == 1 else f"ranks {first} to {first + axes['tensor'] - 1}"
    return f"pipeline rank {stage} is {ranks}"


THREE_D_CARD = StrategySpec(
    name="three_d",
    entry="workloads.three_d.strategy:build",
    kind="training",
    summary="data x tensor x pipeline parallel on one mesh: replicas of stages whose products are divided",
    version=1,
    options=(
        *PIPELINE_OPTIONS,
        DEFER_RECEIVES,
        replace(STAGES, default=1),
        SCHEDULE,
        PIPELINE_RANKS,
        TENSOR_RANKS,
        SEQUENCE_PARALLEL,
        DATA_AXIS,
        BUCKET_MB,
    ),
    needs=Needs(minimum_ranks=4),
    parity=Parity(
        kind="exact",
        variants=(
            {},
            {"tensor_ranks": 1, "data_axis": "fsdp", "balance": "flops"},
            {"tensor_ranks": 1, "schedule": "zbv", "stages": 2, "bucket_mb": 0.1},
            {"schedule": "interleaved_zero_bubble", "stages": 2, "sequence_parallel": True},
            {"schedule": "interleaved", "stages": 2, "checkpoint": "full"},
        ),
    ),
    mesh=_mesh,
    refusals=_refusals,
    sends_messages=lambda setup: True,
    high_priority_axes=lambda setup: priority_axes(setup, "stage"),
    transfers=_transfers,
    states=_states,
    states_not_covered=measured_stages,
    paper_states=_paper_states,
    peak=_peak,
    paper_activations=_paper_activations,
    pipeline=pipeline_of,
    notes=_notes,
)
