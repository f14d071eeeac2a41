"""Spec of `three_d`: replicas of a pipeline whose stages are divided by tensors, on one device mesh.

Placement follows the interconnect. Ranks of the axis `tensor` communicate in every block and are neighbours; stages
pass on one tensor per microbatch; replicas communicate once a step and are farthest apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from workloads.core.buckets import BUCKET_MB, bucket_bytes, settled_buckets, size_refusals, unused_bucket_refusals
from workloads.core.cuda_setup import cuda_model, cuda_peak_not_covered
from workloads.core.precision_options import grad_dtype_of, gradient_bytes, stream_bytes
from workloads.cost_models.absent import Absent
from workloads.cost_models.memory import FULL_BYTES, Weights, paper_states
from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.schedules import HALVED_BACKWARD, Pipeline, ScheduleName, actions, live_microbatches
from workloads.cost_models.terms import StageTransfers, States, Transfer
from workloads.options import (
    DEFER_RECEIVES,
    GATHERED_IN_GRAPHS,
    checkpoint_every,
    graph_refusals,
    local_batch,
    microbatch,
    microbatch_count,
    numbers_agreed,
    tied_refusals,
    training_refusals,
    unchunked_refusals,
)
from workloads.pipeline_parallel.cuda_peak import pipeline_cuda_peak
from workloads.pipeline_parallel.spec import (
    PIPELINE_OPTIONS,
    STAGES,
    UNEQUAL_STAGES,
    PipelineSpec,
    counts,
    halved_backward_refusals,
    stages_refusals,
)
from workloads.spec import (
    DIVIDED_SUMS_LIMIT,
    ELEMENT_BYTES,
    Needs,
    Option,
    OptionValue,
    Parity,
    Search,
    Setup,
    nearest_multiples,
)
from workloads.tensor_parallel.cost_model import TensorTraffic, paper_activation_bytes
from workloads.tensor_parallel.spec import (
    SEQUENCE_PARALLEL,
    SHARDED_HEAD,
    compile_refusals,
    divided_weights,
    divisibility_refusals,
)
from workloads.three_d.cost_model import MeshStages

PIPELINE_RANKS = Option(
    name="pipeline_ranks",
    default=2,
    minimum=2,
    help="ranks of a pipeline, over which the layers are split",
    search=Search(values="ranks"),
)
TENSOR_RANKS = Option(
    name="tensor_ranks",
    default=2,
    minimum=1,
    help="neighbouring ranks over which each matrix product is sharded, such as a node's",
    search=Search(values="ranks"),
)
DATA_AXIS = Option(
    name="data_axis",
    default="ddp",
    choices=("ddp", "fsdp"),
    help="replicas of a stage: average gradients after the last backward, or shard all that the stage holds",
    search=Search(values=("ddp", "fsdp")),
)
SCHEDULE = Option(
    name="schedule",
    default="one_f_one_b",
    choices=("gpipe", "one_f_one_b", "interleaved", "interleaved_zero_bubble", "zbv"),
    help="pipeline schedule: order of a stage's microbatches",
    # Not gpipe: one_f_one_b takes as long and holds less.
    search=Search(values=("one_f_one_b", "interleaved", "interleaved_zero_bubble", "zbv")),
)
GATHERED_STAGES = 3
"""Number of stages per rank whose weights torch's schedules keep gathered at a time."""
LISTED_RANKS = 16
"""For a larger mesh, the notes show the rule in place of each rank's coordinates."""


def replica_ranks(setup: Setup) -> int:
    """Return the number of ranks that hold one replica of the model."""
    return int(setup.options[PIPELINE_RANKS.name]) * int(setup.options[TENSOR_RANKS.name])


def _sharding_refusals(setup: Setup, schedule: ScheduleName, *, data_ranks: int) -> Iterator[str]:
    """Yield why FSDP2 cannot divide the stages of this setup among replicas."""
    options = setup.options
    yield from graph_refusals(setup, GATHERED_IN_GRAPHS)
    if data_ranks == 1:
        yield (
            f"option data_axis is fsdp with one replica of {replica_ranks(setup)} ranks, so nothing can be sharded;"
            f" use --ranks {2 * replica_ranks(setup)}, smaller pipeline_ranks or tensor_ranks, or data_axis=ddp"
        )
    if schedule in HALVED_BACKWARD:
        yield (
            f"option data_axis is fsdp with schedule={schedule}, which splits backward into inputs and weights: where"
            " FSDP2 reshards weights in between, gradients are silently wrong (torch 2.13); use data_axis=ddp, or"
            " schedule=interleaved"
        )
    elif int(options[STAGES.name]) > GATHERED_STAGES:
        yield (
            f"option stages is {options[STAGES.name]} with data_axis=fsdp; torch's schedules keep the weights of"
            f" {GATHERED_STAGES} stages of a rank gathered, and would gather the others again for each microbatch: use"
            f" stages={GATHERED_STAGES} or fewer, or data_axis=ddp"
        )


def _places(axes: Mapping[str, int]) -> str:
    """Return a note on the places of ranks in the mesh."""
    mesh = " x ".join(f"{name} {size}" for name, size in axes.items())
    if axes["data"] * axes["stage"] * axes["tensor"] > LISTED_RANKS:
        number = f"(replica x {axes['stage']} + pipeline rank) x {axes['tensor']} + tensor rank"
        return f"mesh {mesh}, tensor innermost: rank {number}"
    replicas = []
    for data in range(axes["data"]):
        firsts = [(data * axes["stage"] + stage) * axes["tensor"] for stage in range(axes["stage"])]
        ranks = [
            f"rank {first}" if axes["tensor"] == 1 else f"ranks {first} to {first + axes['tensor'] - 1}"
            for first in firsts
        ]
        stages = ", ".join(f"pipeline rank {stage} is {own}" for stage, own in enumerate(ranks))
        replicas.append(f"replica {data}: {stages}")
    return f"mesh {mesh}, tensor innermost; {'; '.join(replicas)}"


class ThreeDSpec(PipelineSpec):
    name = "three_d"
    summary = "data x tensor x pipeline parallel on one mesh: replicas of pipelines with sharded matrix products"
    options = (
        *PIPELINE_OPTIONS,
        DEFER_RECEIVES,
        replace(STAGES, default=1),
        SCHEDULE,
        PIPELINE_RANKS,
        TENSOR_RANKS,
        SEQUENCE_PARALLEL,
        DATA_AXIS,
        BUCKET_MB,
    )
    needs = Needs(minimum_ranks=4)
    parity = Parity(
        half_weights_limit=DIVIDED_SUMS_LIMIT,
        variants=(
            {},
            {"tensor_ranks": 1, "data_axis": "fsdp", "balance": "flops", "loss_chunks": 2},
            {"tensor_ranks": 1, "schedule": "zbv", "stages": 2, "bucket_mb": 0.1},
            {"schedule": "interleaved_zero_bubble", "stages": 2, "sequence_parallel": True},
            {"schedule": "interleaved", "stages": 2, "checkpoint": "full"},
        ),
    )

    def mesh(self, setup: Setup) -> dict[str, int]:
        return {
            "data": setup.ranks // replica_ranks(setup),
            "stage": int(setup.options[PIPELINE_RANKS.name]),
            "tensor": int(setup.options[TENSOR_RANKS.name]),
        }

    def schedule(self, setup: Setup) -> ScheduleName:
        schedule: ScheduleName = setup.options[SCHEDULE.name]  # type: ignore[assignment]  # It allows no other word.
        return schedule

    def pipeline(self, setup: Setup) -> Pipeline:
        pipeline = super().pipeline(setup)
        # Sequence parallelism divides the residual stream, and so the tensors between stages.
        stream_ranks = int(setup.options[TENSOR_RANKS.name]) if setup.options[SEQUENCE_PARALLEL.name] else 1
        return replace(pipeline, boundary_bytes=pipeline.boundary_bytes // stream_ranks)

    def settled(self, setup: Setup) -> Mapping[str, OptionValue]:
        is_sharded = setup.options[DATA_AXIS.name] == "fsdp"
        return {
            **super().settled(setup),
            **({} if is_sharded else settled_buckets(setup, parts=replica_ranks(setup))),
        }

    def refusals(self, setup: Setup) -> list[str]:
        options, replica = setup.options, replica_ranks(setup)
        if setup.ranks % replica:
            fitting = nearest_multiples(setup.ranks, replica)
            return [
                f"pipeline_ranks {options[PIPELINE_RANKS.name]} x tensor_ranks {options[TENSOR_RANKS.name]} make"
                f" replicas of {replica} ranks, which do not divide {setup.ranks} ranks; --ranks {fitting}"
                " would fit"
            ]
        axes, schedule = self.mesh(setup), self.schedule(setup)
        reasons = [
            *training_refusals(
                setup,
                data_ranks=axes["data"],
                weights_refused=divided_weights(axes["tensor"]),
                is_reduced_rounded=options[DATA_AXIS.name] == "fsdp",
            ),
            *size_refusals(setup),
            *(unchunked_refusals(setup, SHARDED_HEAD) if axes["tensor"] > 1 else ()),
            *tied_refusals(setup, "its stages and tensor ranks divide the two apart"),
            *stages_refusals(setup, self.pipeline(setup), data_ranks=axes["data"]),
            *divisibility_refusals(setup, ranks=axes["tensor"], option=TENSOR_RANKS.name),
            *compile_refusals(setup, ranks=axes["tensor"]),
            *halved_backward_refusals(setup, schedule),
        ]
        if options[DATA_AXIS.name] == "fsdp":
            reasons += _sharding_refusals(setup, schedule, data_ranks=axes["data"])
            reasons += unused_bucket_refusals(setup, f"{DATA_AXIS.name}=fsdp", f"{DATA_AXIS.name}=ddp")
        return reasons

    def _cost_model(self, setup: Setup) -> MeshStages:
        axes, options = self.mesh(setup), setup.options
        pipeline, numbers = self.pipeline(setup), numbers_agreed(setup)
        is_sharded = options[DATA_AXIS.name] == "fsdp" and axes["data"] > 1
        return MeshStages(
            shape=setup.shape,
            pipeline=pipeline,
            counts=counts(setup, pipeline.stages),
            data_ranks=axes["data"],
            traffic=TensorTraffic(
                shape=setup.shape,
                ranks=axes["tensor"],
                sequences=local_batch(setup, axes["data"]),
                microbatches=microbatch_count(setup),
                product_bytes=ELEMENT_BYTES[setup.precision],
                stream_element_bytes=stream_bytes(setup),
                is_stream_sharded=bool(options[SEQUENCE_PARALLEL.name]),
                is_loss_sharded=False,
                is_recomputed=options["checkpoint"] != "none",
                recomputed_every=checkpoint_every(setup),
                numbers=numbers,
                has_all_to_all=setup.device == "cuda",
            ),
            bucket_bytes=None if is_sharded else bucket_bytes(setup, parts=replica_ranks(setup)),
            gathered_bytes=stream_bytes(setup),
            reduced_bytes=gradient_bytes(setup),
            numbers=numbers,
        )

    def default_weights(self, setup: Setup) -> Weights:
        is_sharded = setup.options[DATA_AXIS.name] == "fsdp"
        return "bf16_compute" if setup.precision == "bf16" and is_sharded else "autocast"

    def incomparable(self, setup: Setup) -> str | None:
        if grad_dtype_of(setup) == "fp32":
            return None
        return f"grad_dtype={grad_dtype_of(setup)} rounds each gradient; use grad_dtype=fp32"

    def transfers(self, setup: Setup) -> tuple[Transfer, ...]:
        return self._cost_model(setup).transfers()

    def stage_transfers(self, setup: Setup, stage: int) -> StageTransfers:
        return self._cost_model(setup).stage_transfers(stage)

    def update_transfers(self, setup: Setup) -> tuple[Transfer, ...]:
        return self._cost_model(setup).update_transfers()

    def states(self, setup: Setup, rank: int) -> States:
        return self._cost_model(setup).states(rank)

    def gathered_bytes(self, setup: Setup, rank: int) -> int:
        return self._cost_model(setup).kept_gathered_bytes(rank)

    def unreduced_bytes(self, setup: Setup, rank: int) -> int:
        return self._cost_model(setup).unreduced_bytes(rank)

    def paper_states(self, setup: Setup) -> States:
        return paper_states(
            setup.shape.parameters(),
            stage=2 if setup.options[DATA_AXIS.name] == "fsdp" else 0,
            data_ranks=self.mesh(setup)["data"],
            model_ranks=replica_ranks(setup),
        )

    def paper_activations(self, setup: Setup) -> int | Absent:
        if checkpoint_every(setup) > 1:
            return UNEQUAL_STAGES
        axes, pipeline = self.mesh(setup), self.pipeline(setup)
        size = microbatch(setup, axes["data"])
        of_all = paper_activation_bytes(
            setup.shape,
            size.sequences,
            size.checkpoint,
            ranks=axes["tensor"],
            is_stream_sharded=bool(setup.options[SEQUENCE_PARALLEL.name]),
        )
        return max(live_microbatches(actions(pipeline))) * of_all // pipeline.stages

    def peak(self, setup: Setup) -> Prediction | Absent:
        if setup.device == "cuda":
            return self._cuda_peak(setup)
        return Absent(reason="no cost model of live tensors covers stages whose products are sharded")

    def _cuda_peak(self, setup: Setup) -> Prediction | Absent:
        if (reason := self.states_not_covered(setup) or cuda_peak_not_covered(setup)) is not None:
            return reason
        axes, pipeline, costs = self.mesh(setup), self.pipeline(setup), self._cost_model(setup)
        is_sharded = costs.bucket_bytes is None
        model = replace(
            cuda_model(setup, axes["data"], is_gathered=is_sharded),
            gradient_bytes=FULL_BYTES,  # Even if gathered weights are in bf16: gradients add up in fp32.
            tensor_ranks=axes["tensor"],
            is_stream_sharded=bool(setup.options[SEQUENCE_PARALLEL.name]) and axes["tensor"] > 1,
        )
        peaks = []
        for rank in range(pipeline.ranks):
            states = costs.states(rank * axes["tensor"])
            # Replicas copy all gradients into buckets, and wait for all buckets together.
            copied = states.gradients_bytes if axes["data"] > 1 and not is_sharded else 0
            peaks.append(
                pipeline_cuda_peak(
                    pipeline,
                    model,
                    costs.counts,
                    rank,
                    states=states,
                    gathered_bytes=costs.kept_gathered_bytes(rank * axes["tensor"]),
                    after_backward_bytes=copied,
                )
            )
        return max(peaks, key=lambda peak: peak.total_bytes)

    def notes(self, setup: Setup) -> list[str]:
        axes = self.mesh(setup)
        notes = [_places(axes), *super().notes(setup)]
        inside = ["tensor"] if axes["tensor"] > 1 else []
        if axes["data"] > 1 and setup.options[DATA_AXIS.name] == "fsdp":
            inside.append("data")
        if inside:
            notes.append(
                f"collectives over the axis {' and '.join(inside)} run inside stages: the time of their actions,"
                " which counts as busy, includes waits for these peers"
            )
        return notes
